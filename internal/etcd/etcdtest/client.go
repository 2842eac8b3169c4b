package etcdtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"samovar/internal/etcd/kv"
	"samovar/internal/fault"
)

// Fault is what goes wrong with one call.
type Fault int

// The faults.
const (
	Pass        Fault = iota // nothing
	Unavailable              // nobody answers; a write certainly did not happen
	LostRequest              // a write is Unknown and did not happen; a read is Unavailable
	LostReply                // a write is Unknown and happened; a read is Unavailable
)

// Call is what a fault is chosen for.
type Call struct {
	Write bool
	Keys  []string // the keys or the prefix; nil for a lease
}

// Client is one process that uses a Memory. It implements kv.Store.
type Client struct {
	memory *Memory

	// The rest is guarded by memory.mu.
	cut    bool // this process does not reach the store
	inject func(Call) Fault
	closed chan struct{}
	watch  sync.WaitGroup
}

var _ kv.Store = (*Client)(nil)

func newClient(m *Memory) *Client { return &Client{memory: m, closed: make(chan struct{})} }

// SetReachable cuts this process off from the store, or joins it again: calls are Unavailable, watches stand still,
// sessions are not renewed.
func (c *Client) SetReachable(reachable bool) {
	c.memory.mu.Lock()
	defer c.memory.mu.Unlock()
	c.cut = !reachable
	c.memory.settle()
}

// Inject chooses the fault of every call from now on; nil: none. It runs under the store's lock and calls nothing of it.
func (c *Client) Inject(choose func(Call) Fault) {
	c.memory.mu.Lock()
	defer c.memory.mu.Unlock()
	c.inject = choose
}

// FailNextWrite lets the next write fail in one way, and those after it pass.
func (c *Client) FailNextWrite(f Fault) {
	done := false
	c.Inject(func(call Call) Fault {
		if done || !call.Write {
			return Pass
		}
		done = true
		return f
	})
}

// enter begins a call with the lock held. It tells what goes wrong, as an error for calls that do not get through.
func (c *Client) enter(ctx context.Context, op string, call Call) (Fault, error) {
	select {
	case <-c.closed:
		return Unavailable, fault.New(fault.Shutdown, op, "the cluster store's client is closed")
	default:
	}
	if err := ctx.Err(); err != nil {
		kind := fault.Unavailable
		if errors.Is(err, context.Canceled) {
			kind = fault.Aborted
		}
		return Unavailable, fault.Wrap(kind, op, err)
	}
	f := Pass
	if c.inject != nil {
		f = c.inject(call)
	}
	if c.cut || c.memory.down {
		f = Unavailable
	}
	if f == Unavailable || f != Pass && !call.Write {
		return f, fault.New(fault.Unavailable, op, "the cluster store has no majority or cannot be reached: memory did not answer in time")
	}
	return f, nil
}

// Get reads one record.
func (c *Client) Get(ctx context.Context, key string) (kv.KV, error) {
	op := "get " + key
	if err := kv.CheckKey(op, key); err != nil {
		return kv.KV{}, err
	}
	c.memory.mu.Lock()
	defer c.memory.mu.Unlock()
	if _, err := c.enter(ctx, op, Call{Keys: []string{key}}); err != nil {
		return kv.KV{}, err
	}
	r, there := c.memory.data[key]
	if !there {
		return kv.KV{}, fault.New(fault.NotFound, op, "no such record")
	}
	return copied(r), nil
}

// List reads every record under prefix.
func (c *Client) List(ctx context.Context, prefix string) (kv.Listing, error) {
	op := "list " + prefix
	if err := kv.CheckPrefix(op, prefix); err != nil {
		return kv.Listing{}, err
	}
	c.memory.mu.Lock()
	defer c.memory.mu.Unlock()
	if _, err := c.enter(ctx, op, Call{Keys: []string{prefix}}); err != nil {
		return kv.Listing{}, err
	}
	return c.memory.list(prefix), nil
}

// Revision is the present revision of the store.
func (c *Client) Revision(ctx context.Context) (int64, error) {
	list, err := c.List(ctx, "")
	return list.Revision, err
}

// ClusterID names the store.
func (c *Client) ClusterID(ctx context.Context) (string, error) {
	_, err := c.Revision(ctx)
	return fmt.Sprintf("%016x", 0xfeed), err
}

// Put writes without a condition.
func (c *Client) Put(ctx context.Context, key string, value []byte) kv.Outcome {
	return c.transact(ctx, "put "+key, nil, []kv.Change{{Key: key, Value: value}})
}

// Delete removes a key.
func (c *Client) Delete(ctx context.Context, key string) kv.Outcome {
	return c.transact(ctx, "delete "+key, nil, []kv.Change{{Key: key, Remove: true}})
}

// CompareAndSwap writes if the key's ModRevision is expect.
func (c *Client) CompareAndSwap(ctx context.Context, key string, expect int64, value []byte, lease kv.LeaseID) kv.Outcome {
	return c.transact(ctx, "compare and swap "+key,
		[]kv.Condition{{Key: key, ModRevision: expect}}, []kv.Change{{Key: key, Value: value, Lease: lease}})
}

// Txn makes all changes if all conditions hold.
func (c *Client) Txn(ctx context.Context, conditions []kv.Condition, changes []kv.Change) kv.Outcome {
	return c.transact(ctx, "transaction", conditions, changes)
}

func (c *Client) transact(ctx context.Context, op string, conditions []kv.Condition, changes []kv.Change) kv.Outcome {
	if err := kv.CheckTxn(op, conditions, changes); err != nil {
		return kv.Refused(err)
	}
	var keys []string
	for _, ch := range changes {
		keys = append(keys, ch.Key)
	}
	c.memory.mu.Lock()
	defer c.memory.mu.Unlock()
	f, err := c.enter(ctx, op, Call{Write: true, Keys: keys})
	switch {
	case err != nil:
		return kv.Refused(err)
	case f == LostRequest:
		return kv.Uncertain(op, "the request was lost", nil)
	}
	outcome := c.memory.transact(op, conditions, changes)
	if f == LostReply {
		return kv.Uncertain(op, "the reply was lost", nil)
	}
	return outcome
}

// session is a lease of a client. Its fields are guarded by memory.mu.
type session struct {
	client *Client
	id     kv.LeaseID
	ttl    time.Duration
	until  time.Time // a TTL after the last renewal
	lost   chan struct{}
}

// Grant makes a lease and keeps it alive as time is advanced.
func (c *Client) Grant(ctx context.Context, ttl time.Duration) (kv.Session, error) {
	op := fmt.Sprintf("grant a lease of %v", ttl)
	if ttl <= 0 || ttl > kv.MaxTTL {
		return nil, fault.New(fault.Invalid, op, "the time to live must be above zero and at most a day")
	}
	m := c.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	f, err := c.enter(ctx, op, Call{Write: true})
	if err != nil {
		return nil, err
	}
	if f != Pass { // a lease that nobody knows of is no effect, so a lost reply is no different from a lost request
		return nil, fault.New(fault.Unavailable, op, "memory did not answer in time")
	}
	ttl = max((ttl + time.Second - 1).Truncate(time.Second), m.minTTL)
	m.lastLease++
	s := &session{client: c, id: m.lastLease, ttl: ttl, until: m.now.Add(ttl), lost: make(chan struct{})}
	m.leases[s.id] = &lease{ttl: ttl, expires: s.until}
	m.sessions[s] = true
	return s, nil
}

func (s *session) Lease() kv.LeaseID     { return s.id }
func (s *session) TTL() time.Duration    { return s.ttl }
func (s *session) Lost() <-chan struct{} { return s.lost }

// Abandon stops renewing.
func (s *session) Abandon() {
	m := s.client.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lose(s)
}

// Close revokes the lease.
func (s *session) Close(ctx context.Context) error {
	s.Abandon()
	m := s.client.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := s.client.enter(ctx, fmt.Sprintf("revoke lease %x", s.id), Call{Write: true}); err != nil {
		return err
	}
	m.dropLease(s.id)
	return nil
}

// Watch follows prefix.
func (c *Client) Watch(ctx context.Context, prefix string, from int64) <-chan kv.Event {
	out := make(chan kv.Event)
	c.memory.mu.Lock()
	defer c.memory.mu.Unlock()
	select {
	case <-c.closed:
		close(out)
		return out
	default:
	}
	c.watch.Go(func() {
		defer close(out)
		next := max(from, 0)
		for {
			event, changed := c.step(prefix, &next)
			if changed != nil {
				select {
				case <-changed:
					continue
				case <-ctx.Done():
				case <-c.closed:
				}
				return
			}
			select {
			case out <- event:
			case <-ctx.Done():
				return
			case <-c.closed:
				return
			}
		}
	})
	return out
}

// step gives the next event of a watch that stands at next, or the channel that tells when to look again.
func (c *Client) step(prefix string, next *int64) (kv.Event, <-chan struct{}) {
	m := c.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.cut || m.down {
		return kv.Event{}, m.changed
	}
	if *next == 0 || *next < m.compacted || *next > m.revision+1 {
		list := m.list(prefix)
		event := kv.Event{Revision: list.Revision, Resync: true}
		for _, r := range list.Items {
			event.Items = append(event.Items, kv.Item{KV: r})
		}
		*next = list.Revision + 1
		return event, nil
	}
	for _, e := range m.history {
		if e.Revision < *next {
			continue
		}
		*next = e.Revision + 1
		event := kv.Event{Revision: e.Revision}
		for _, item := range e.Items {
			if strings.HasPrefix(item.Key, prefix) {
				item.KV = copied(item.KV)
				event.Items = append(event.Items, item)
			}
		}
		if len(event.Items) > 0 {
			return event, nil
		}
	}
	return kv.Event{}, m.changed
}

// Close abandons the client's sessions, ends its watches and waits for them.
func (c *Client) Close() error {
	m := c.memory
	m.mu.Lock()
	select {
	case <-c.closed:
		m.mu.Unlock()
		return nil
	default:
	}
	close(c.closed)
	for s := range m.sessions {
		if s.client == c {
			m.lose(s)
		}
	}
	m.mu.Unlock()
	c.watch.Wait()
	return nil
}
