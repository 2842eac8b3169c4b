package etcd

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"samovar/internal/etcd/kv"
	"samovar/internal/fault"
)

// maxAttempt is how long one member may take for a read, or to take a write over, before another is tried.
const maxAttempt = 1500 * time.Millisecond

// call is one request to one member.
type call func(ctx context.Context, ep *endpoint) error

// read repeats f over the endpoints until it succeeds, is refused, or the deadline passes. f changes nothing, or may
// be repeated without harm.
func (c *Client) read(ctx context.Context, op string, f call) error {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	t := trail{}
	for round := 0; ctx.Err() == nil; round++ {
		ep := c.pool.pick()
		_, err := c.attempt(ctx, ep, true, f)
		if err == nil {
			return nil
		}
		if kind := refusal(err); kind != fault.None {
			return fault.Wrap(kind, op, plain(err))
		}
		t.note(ctx, ep, err)
		c.pool.avoid(ep)
		c.pause(ctx, round)
	}
	return c.gaveUp(ctx, op, t)
}

// write gives f to a member once. It goes on to another member only if this one certainly did not take the request:
// it never left, or the member refused it for want of a leader. Everything else is Unknown and left to the caller.
func (c *Client) write(ctx context.Context, op string, f call) kv.Outcome {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	t := trail{}
	for round := 0; ctx.Err() == nil; round++ {
		ep := c.pool.pick()
		sent, err := c.attempt(ctx, ep, false, f)
		if err == nil {
			return kv.Outcome{Verdict: kv.Applied}
		}
		if kind := refusal(err); kind != fault.None {
			return kv.Refused(fault.Wrap(kind, op, plain(err)))
		}
		if sent && !passedOver(err) {
			c.pool.avoid(ep)
			return kv.Uncertain(op, ep.address+" did not confirm it", plain(err))
		}
		t.note(ctx, ep, err)
		c.pool.avoid(ep)
		c.pause(ctx, round)
	}
	return kv.Refused(c.gaveUp(ctx, op, t))
}

// attempt makes one call on one endpoint and tells whether the request may have left this process.
func (c *Client) attempt(ctx context.Context, ep *endpoint, repeatable bool, f call) (sent bool, err error) {
	alive, reign, release := ep.use()
	defer release()
	limit := c.attemptLimit(ctx)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(alive, func() { cancel(errSilent) })()
	if !repeatable {
		defer context.AfterFunc(reign, func() { cancel(errLeaderGone) })()
	}
	var flag atomic.Bool
	defer time.AfterFunc(limit, func() {
		// A write that left is never cut short here: the answer may be a moment away, and without it nobody knows.
		if repeatable || !flag.Load() {
			cancel(errSlow)
		}
	}).Stop()
	if !ep.admitted.Load() {
		err = c.pool.admit(ctx, ep)
	}
	if err == nil {
		withLeader := metadata.AppendToOutgoingContext(ctx, rpctypes.MetadataRequireLeaderKey, rpctypes.MetadataHasLeader)
		err = f(context.WithValue(withLeader, sentKey{}, &flag), ep)
	}
	if cause := context.Cause(ctx); err != nil && (cause == errSilent || cause == errSlow || cause == errLeaderGone) {
		err = cause
	}
	return flag.Load(), err
}

var (
	errSilent     = errors.New("stopped answering")
	errSlow       = errors.New("did not answer in time")
	errLeaderGone = errors.New("has a new leader and gave no answer for the old one")
)

// attemptLimit leaves time for all endpoints before the call's deadline.
func (c *Client) attemptLimit(ctx context.Context) time.Duration {
	end, _ := ctx.Deadline() // bounded sets it
	share := time.Until(end) / time.Duration(len(c.pool.endpoints)+1)
	return min(max(share, 100*time.Millisecond), maxAttempt)
}

// bounded gives a call its deadline and ends it when the client is closed.
func (c *Client) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, c.opts.CallTimeout)
	stop := context.AfterFunc(c.closing, cancel)
	return ctx, func() { stop(); cancel() }
}

// pause waits before the next endpoint: not at all in the first round through all of them, then longer and longer.
func (c *Client) pause(ctx context.Context, round int) {
	n := len(c.pool.endpoints)
	if (round+1)%n != 0 {
		return
	}
	wait(ctx, min(25*time.Millisecond<<min((round+1)/n, 5), 400*time.Millisecond))
}

// gaveUp is the error of a call whose time is over, or whose caller went away.
func (c *Client) gaveUp(ctx context.Context, op string, t trail) error {
	switch {
	case c.closing.Err() != nil:
		return fault.New(fault.Shutdown, op, "the cluster store's client is closed")
	case errors.Is(ctx.Err(), context.Canceled):
		return fault.Wrap(fault.Aborted, op, ctx.Err())
	case t.allForeign():
		return fault.New(fault.Foreign, op, t.String())
	case len(t.order) == 0:
		return fault.New(fault.Unavailable, op, "the deadline had passed before it began")
	}
	return fault.New(fault.Unavailable, op, "the cluster store has no majority or cannot be reached: "+t.String())
}

// trail is what each endpoint said to one call.
type trail struct {
	order []string
	last  map[string]error
}

// note keeps what ep said. An attempt that the call's own end cut short says nothing new about an endpoint that was
// tried before.
func (t *trail) note(ctx context.Context, ep *endpoint, err error) {
	if t.last == nil {
		t.last = map[string]error{}
	}
	_, known := t.last[ep.address]
	if !known {
		t.order = append(t.order, ep.address)
	}
	if ctx.Err() == nil {
		t.last[ep.address] = err
	} else if !known {
		t.last[ep.address] = errors.New("did not answer in time")
	}
}

func (t *trail) allForeign() bool {
	for _, err := range t.last {
		if !errors.As(err, new(errForeign)) {
			return false
		}
	}
	return len(t.last) > 0
}

func (t *trail) String() string {
	var parts []string
	for _, address := range t.order {
		parts = append(parts, address+" "+plain(t.last[address]).Error())
	}
	return strings.Join(parts, "; ")
}

// passedOver tells whether the member refused a request before proposing it, for a reason that passes.
func passedOver(err error) bool {
	if errors.As(err, new(errForeign)) || errors.As(err, new(errLeaderless)) {
		return true
	}
	switch rpctypes.Error(err) {
	case rpctypes.ErrNoLeader, rpctypes.ErrTooManyRequests, rpctypes.Error(rpctypes.ErrGRPCNotSupportedForLearner):
		return true
	}
	return false
}

// refusal is the kind of an answer that says for good, and for certain, that nothing was done; None for any other.
func refusal(err error) fault.Kind {
	switch rpctypes.Error(err) {
	case rpctypes.ErrLeaseNotFound:
		return fault.NotFound
	case rpctypes.ErrNoSpace:
		return fault.NoSpace
	case rpctypes.ErrCorrupt:
		return fault.Corrupt
	case rpctypes.ErrRequestTooLarge, rpctypes.ErrTooManyOps, rpctypes.ErrDuplicateKey, rpctypes.ErrEmptyKey,
		rpctypes.ErrLeaseTTLTooLarge, rpctypes.ErrCompacted, rpctypes.ErrFutureRev:
		return fault.Invalid
	case rpctypes.ErrPermissionDenied, rpctypes.ErrInvalidAuthToken, rpctypes.ErrUserEmpty:
		return fault.Permission
	}
	return fault.None
}

// plain takes gRPC's wrapping off, for people.
func plain(err error) error {
	s, ok := status.FromError(err)
	if !ok {
		return err
	}
	switch s.Code() {
	case codes.DeadlineExceeded:
		return errors.New("did not answer in time")
	case codes.Canceled:
		return context.Canceled
	case codes.Unavailable:
		if strings.Contains(s.Message(), "connection refused") {
			return errors.New("refused the connection")
		}
	}
	return errors.New(strings.TrimPrefix(s.Message(), "etcdserver: "))
}
