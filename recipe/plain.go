package recipe

// This file has the claim on a lock without a queue.

import (
	"context"

	"github.com/lockpool/lockpool/driver"
)

// Plain is one attempt to take a lock without a queue: a single node existing while the
// lock is held. All waiters watch the node, and all try again when the node is gone.
type Plain struct{ Claim }

// Acquire is [Claim.Acquire].
func (p *Plain) Acquire(ctx context.Context) (driver.Node, error) { return p.acquire(ctx, p.wait) }

// Try is [Claim.Try].
func (p *Plain) Try(ctx context.Context) (driver.Node, error) { return p.acquire(ctx, p.failBusy) }

func (p *Plain) acquire(ctx context.Context, blocked onBlocked) (driver.Node, error) {
	plain, err := driver.Offer[driver.PlainLocker](p.Session)
	if err != nil {
		return driver.Node{}, err
	}
	for {
		node, created, err := plain.TryCreate(ctx, p.Queue, p.Data)
		if err != nil || created {
			return node, err
		}
		if _, err = blocked(ctx, &state{claim: &p.Claim, head: node, awaited: []driver.Node{node}, listed: true}); err != nil {
			return driver.Node{}, err
		}
	}
}
