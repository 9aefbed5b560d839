//go:build linux

// Package campaigntest tests the campaigns of engines.
package campaigntest

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/lab/simulate/workload"
	"github.com/lockpool/lockpool/testing/lab/torture/campaign"
)

// Run runs a campaign and returns the report and the last line of output.
func Run(t *testing.T, e campaign.Engine, change func(*campaign.Options)) (workload.Report, string) {
	o := campaign.DefaultOptions()
	change(&o)
	var out strings.Builder
	found, err := campaign.Run(t.Context(), &out, e, o)
	t.Log("\n" + out.String())
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	return found, lines[len(lines)-1]
}

// FindsNoViolation requires a short campaign to find nothing.
func FindsNoViolation(t *testing.T, e campaign.Engine) {
	found, last := Run(t, e, func(o *campaign.Options) { o.Duration = 25 * time.Second })
	require.Equal(t, "violations=0 leaked_nodes=0 stuck_waiters=0", last)
	require.True(t, found.Clean()) // a lock never shared is a violation, once enough requests fit beside a holder
	for _, kind := range []string{workload.Exclusive, workload.Plain} {
		require.Equal(t, 1, found.MaxHolders[workload.NameOf(kind, 1)], kind)
	}
}

// FindsOverlap has a holder cut off for longer than the session timeout, while another
// client waits, in a campaign with changed options, and requires an overlap to be found, or
// none.
func FindsOverlap(t *testing.T, e campaign.Engine, overlap bool, change func(*campaign.Options)) {
	found, last := Run(t, e, func(o *campaign.Options) {
		o.Clients, o.Workers, o.Locks, o.Kinds = 2, 2, 1, []string{workload.Exclusive}
		o.LongHolds, o.MinLong, o.MaxLong = 100, 4*o.Timeout, 4*o.Timeout // longer than the fault
		o.Rush = 0                                                        // or the first holder may have an own lock
		o.Duration = 5 * time.Second
		o.Faults = []campaign.Fault{{
			Name: "freeze the connections of the holder", Target: campaign.Connections, Lasts: workload.Longer,
			Begin: func(c *campaign.Campaign, _ *rand.Rand) (string, func() error, error) {
				return c.Disturb(c.LongestHolder(), func(l campaign.Link) { l.Hold(true, true) })
			},
		}}
		change(o)
	})
	require.Equal(t, !overlap, found.Clean(), last)
	if overlap {
		require.NotEmpty(t, found.Violations)
		require.Contains(t, found.Violations[0], "exceeded its limit")
		require.NotContains(t, last, "violations=0")
	}
}
