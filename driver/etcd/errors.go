package etcd

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/lockpool/lockpool/driver"
)

// conclusion is an error that follows from an answer.
type conclusion struct{ error }

func (c conclusion) Unwrap() error { return c.error }

// errGone is ErrRemoved as a conclusion.
var errGone = conclusion{driver.ErrRemoved}

// is reports whether the error is one of those that servers send.
func is(err error, which ...error) bool {
	for err != nil {
		for _, w := range which {
			if rpctypes.ErrorDesc(err) == rpctypes.ErrorDesc(w) {
				return true
			}
		}
		err = errors.Unwrap(err)
	}
	return false
}

func isLeaseGone(err error) bool   { return is(err, rpctypes.ErrGRPCLeaseNotFound) }
func isLeaseExists(err error) bool { return is(err, rpctypes.ErrGRPCLeaseExist) }

// isPermanent reports whether no session can be opened because of the error.
func isPermanent(err error) bool {
	return is(err, rpctypes.ErrGRPCAuthFailed, rpctypes.ErrGRPCPermissionDenied, rpctypes.ErrGRPCUserEmpty, rpctypes.ErrGRPCCorrupt)
}

// isConclusive reports whether the error is an answer to a request, which has changed
// nothing. After other errors, it may have been carried out, or may be yet: there was no
// leader, or no answer, or the server was busy.
func isConclusive(err error) bool {
	if is(err, rpctypes.ErrGRPCAuthOldRevision, rpctypes.ErrGRPCUserEmpty) { // the connection has an old token
		return false
	}
	switch s, ok := status.FromError(err); {
	case errors.As(err, new(conclusion)), is(err, rpctypes.ErrGRPCNoSpace):
		return true
	case !ok:
		return false
	default:
		switch s.Code() {
		case codes.NotFound, codes.InvalidArgument, codes.OutOfRange, codes.PermissionDenied, codes.DataLoss, codes.Unimplemented:
			return true
		}
	}
	return false
}

// needsNewConnection reports whether the error is one that another request on the same
// connection gets as well.
func needsNewConnection(err error) bool {
	s, ok := status.FromError(err)
	return ok && s.Code() == codes.Unauthenticated || is(err, rpctypes.ErrGRPCAuthOldRevision, rpctypes.ErrGRPCUserEmpty)
}

// describe returns the error of a call for that of an answer.
func describe(err error) error {
	var c conclusion
	switch {
	case errors.As(err, &c):
		return c.error
	case is(err, rpctypes.ErrGRPCPermissionDenied):
		return fmt.Errorf("etcd: %w: the user needs the right to read and write all keys below the prefix", driver.ErrNoPermission)
	case is(err, rpctypes.ErrGRPCNoSpace):
		return fmt.Errorf("etcd: the servers' database is full, and accepts removals only: compact and defragment it, then disarm the alarm: %w", err)
	}
	return fmt.Errorf("etcd: %w", err)
}
