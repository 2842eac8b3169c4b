package etcd

import (
	"context"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"samovar/internal/etcd/kv"
	"samovar/internal/fault"
)

// session is a lease and the goroutine that renews it.
type session struct {
	client *Client
	id     kv.LeaseID
	ttl    time.Duration
	lost   chan struct{}

	ending context.Context // ends with Abandon, Close and the client
	end    context.CancelFunc
}

// Grant makes a lease and keeps it alive. It is repeated if no answer came: a lease that nobody knows of ends by itself.
func (c *Client) Grant(ctx context.Context, ttl time.Duration) (kv.Session, error) {
	op := fmt.Sprintf("grant a lease of %v", ttl)
	if ttl <= 0 || ttl > kv.MaxTTL {
		return nil, fault.New(fault.Invalid, op, "the time to live must be above zero and at most a day")
	}
	seconds := int64((ttl + time.Second - 1) / time.Second)
	var resp *pb.LeaseGrantResponse
	var asked time.Time
	err := c.read(ctx, op, func(ctx context.Context, ep *endpoint) (err error) {
		asked = time.Now()
		resp, err = ep.lease.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: seconds})
		return err
	})
	if err != nil {
		return nil, err
	}
	s := &session{client: c, id: kv.LeaseID(resp.ID), ttl: time.Duration(resp.TTL) * time.Second, lost: make(chan struct{})}
	s.ending, s.end = context.WithCancel(c.closing)
	if !c.start(func() { s.keep(asked) }) {
		s.end()
		return nil, fault.New(fault.Shutdown, op, "the cluster store's client is closed")
	}
	return s, nil
}

func (s *session) Lease() kv.LeaseID     { return s.id }
func (s *session) TTL() time.Duration    { return s.ttl }
func (s *session) Lost() <-chan struct{} { return s.lost }

// Abandon stops renewing, and returns when that is so.
func (s *session) Abandon() {
	s.end()
	<-s.lost
}

// Close revokes the lease.
func (s *session) Close(ctx context.Context) error {
	s.Abandon()
	op := fmt.Sprintf("revoke lease %x", s.id)
	err := s.client.read(ctx, op, func(ctx context.Context, ep *endpoint) error {
		_, err := ep.lease.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: int64(s.id)})
		return err
	})
	if fault.Is(err, fault.NotFound) {
		return nil // it is gone, which was the purpose
	}
	return err
}

// keep renews the lease a third of a TTL after each renewal. The lease counts from the moment when the last confirmed
// renewal was sent: the store counts from a later one, so it cannot drop the keys while lost is open.
func (s *session) keep(confirmed time.Time) {
	defer close(s.lost)
	defer s.end()
	for {
		end := confirmed.Add(s.ttl)
		ctx, cancel := context.WithDeadline(s.ending, end)
		asked, left, err := time.Time{}, int64(0), error(nil)
		if wait(ctx, time.Until(confirmed.Add(s.ttl/3))) {
			asked, left, err = s.renew(ctx)
		}
		over := ctx.Err() != nil
		cancel()
		switch {
		case s.ending.Err() != nil:
			return
		case err == nil && !asked.IsZero() && left > 0 && time.Now().Before(end):
			confirmed = asked
		case err != nil && !over && !fault.Is(err, fault.NotFound):
			wait(s.ending, 100*time.Millisecond) // an answer that comes at once must not make this spin
		default:
			s.client.opts.Logger.Warn("a lease was lost", "lease", fmt.Sprintf("%x", s.id), "error", err)
			return
		}
	}
}

// renew asks for another TTL. It gives the time of asking and the seconds left; none are left of a lease that is gone.
func (s *session) renew(ctx context.Context) (asked time.Time, left int64, err error) {
	err = s.client.read(ctx, fmt.Sprintf("renew lease %x", s.id), func(ctx context.Context, ep *endpoint) error {
		asked = time.Now()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel() // ends the stream
		stream, err := ep.lease.LeaseKeepAlive(ctx)
		if err != nil {
			return err
		}
		if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(s.id)}); err != nil {
			return err
		}
		resp, err := stream.Recv()
		if err == nil {
			left = resp.TTL
		}
		return err
	})
	return asked, left, err
}
