package etcd

// This file has the errors of servers, and what each says about a request.

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/lockpool/lockpool/driver"
)

// conclusion is an error concluded from an answer.
type conclusion struct{ error }

func (c conclusion) Unwrap() error { return c.error }

// errGone is ErrRemoved as a conclusion.
var errGone = conclusion{driver.ErrRemoved}

// answerOf returns a server's answer, if any.
func answerOf(err error) (code codes.Code, text string) {
	var etcd rpctypes.EtcdError // the client's form of known errors
	if errors.As(err, &etcd) {
		return etcd.Code(), etcd.Error()
	}
	var other interface{ GRPCStatus() *status.Status }
	if errors.As(err, &other) {
		return other.GRPCStatus().Code(), other.GRPCStatus().Message()
	}
	return codes.OK, ""
}

// is reports whether the error is one of the given errors of servers.
func is(err error, which ...error) bool {
	_, text := answerOf(err)
	return text != "" && slices.ContainsFunc(which, func(w error) bool { return text == rpctypes.ErrorDesc(w) })
}

func isLeaseGone(err error) bool   { return is(err, rpctypes.ErrGRPCLeaseNotFound) }
func isLeaseExists(err error) bool { return is(err, rpctypes.ErrGRPCLeaseExist) }

// isFull reports whether the servers refuse writes because their database is full. The
// request that filled the database was refused as well, but carried out.
func isFull(err error) bool { return is(err, rpctypes.ErrGRPCNoSpace) }

// isConclusive reports whether the error is an answer to a request. The request has changed
// nothing, unless isFull. After other errors, the request may have been carried out, or may
// be yet: there was no leader, or no answer, or the server was busy.
func isConclusive(err error) bool {
	if is(err, rpctypes.ErrGRPCAuthOldRevision, rpctypes.ErrGRPCUserEmpty) { // the connection has an old token
		return false
	}
	if errors.As(err, new(conclusion)) || isFull(err) {
		return true
	}
	switch code, text := answerOf(err); code {
	case codes.ResourceExhausted: // from gRPC, which does not send the request; or the server is busy
		return strings.Contains(text, "trying to send message larger than max")
	case codes.NotFound, codes.InvalidArgument, codes.OutOfRange, codes.PermissionDenied, codes.DataLoss, codes.Unimplemented:
		return true
	}
	return false
}

// needsNewConnection reports whether another request on the same connection would get the
// same error.
func needsNewConnection(err error) bool {
	code, _ := answerOf(err)
	return code == codes.Unauthenticated || is(err, rpctypes.ErrGRPCAuthOldRevision, rpctypes.ErrGRPCUserEmpty)
}

// describe returns the error of a call for the error of an answer.
func (c *Connector) describe(err error) error {
	var concluded conclusion
	switch {
	case errors.As(err, &concluded):
		return concluded.error
	case is(err, rpctypes.ErrGRPCPermissionDenied):
		return fmt.Errorf("etcd: %w: the user needs the right to read and write all keys below the prefix %s", driver.ErrNoPermission, c.prefix)
	case isFull(err):
		return fmt.Errorf("etcd: the servers' database is full, and accepts removals only: compact and defragment it, then disarm the alarm: %w", err)
	}
	return fmt.Errorf("etcd: %w", err)
}

// connectError describes an error of connecting to a member. The error is permanent if
// another attempt cannot help.
func (c *Connector) connectError(endpoint string, err error) error {
	var alert *net.OpError
	switch {
	case errors.As(err, new(*tls.CertificateVerificationError)), errors.As(err, new(tls.RecordHeaderError)),
		errors.As(err, &alert) && alert.Op == "remote error":
		err = fmt.Errorf("%w: TLS: %w (check Config.TLS: RootCAs, ServerName and the client's Certificates, and that the port is one for TLS)", driver.ErrPermanent, err)
	case is(err, rpctypes.ErrGRPCAuthFailed, rpctypes.ErrGRPCUserEmpty):
		err = fmt.Errorf("%w: %w: %w (check Config.Username and Config.Password)", driver.ErrPermanent, driver.ErrNoPermission, err)
	case is(err, rpctypes.ErrGRPCPermissionDenied):
		return fmt.Errorf("%w: %w", driver.ErrPermanent, c.describe(err))
	case isFull(err):
		return c.describe(err)
	case c.cfg().TLS == nil && errors.Is(err, io.EOF):
		err = fmt.Errorf("%w (if the servers demand TLS, set Config.TLS)", err)
	case is(err, rpctypes.ErrGRPCCorrupt):
		err = fmt.Errorf("%w: %w", driver.ErrPermanent, err)
	}
	return fmt.Errorf("etcd: connecting to %s: %w", endpoint, err)
}
