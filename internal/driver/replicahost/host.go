// Package replicahost runs the replicas of a node's pools: one owner goroutine for each replica's state machine, its
// disk requests on the store, its sessions on links. It knows pools and links; it does not know engines, the cluster
// store or how a pool's node is found (the caller gives a Finder).
//
// Locks: Host.mu guards the table of replicas only; no I/O and no callback under it.
package replicahost

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"samovar/internal/block"
	"samovar/internal/driver/link"
	"samovar/internal/fault"
	"samovar/internal/replication"
	"samovar/internal/store"
	"samovar/internal/volume"
)

// Event tells of a change of a replica on this node.
type Event struct {
	Volume volume.ID
	Pool   volume.PoolID
	Reason string
	Text   string
}

// Finder opens sessions to replicas on other pools, for copies.
type Finder interface {
	Connect(ctx context.Context, t link.Target, r link.Receiver) (link.Link, error)
}

// Options of a Host.
type Options struct {
	Buffers *block.Pool
	Finder  Finder
	Logger  *slog.Logger
	Events  func(Event) // must not block
	// LogLimit is how many regions a replica's dirty-region log may name.
	LogLimit int
	// FetchTimeout bounds one fetch of a copy from its source.
	FetchTimeout time.Duration
	// RetryPause is the first pause before a replica whose metadata could not be written is opened again; it doubles
	// up to a minute. 0: a second.
	RetryPause time.Duration
}

// Key names a replica.
type Key struct {
	Volume volume.ID
	Pool   volume.PoolID
}

// Host runs replicas.
type Host struct {
	opts Options

	ending  chan struct{}  // closed by Close
	retries sync.WaitGroup // replicas that are opened again after a pause

	mu      sync.Mutex // guards what follows
	runners map[Key]*runner
	resting map[Key]bool          // replicas that gave up and are opened again after a pause
	broken  map[Key]error         // replicas that cannot run, and why
	busy    map[Key]chan struct{} // being started, ended or deleted; closed when that is done
	closed  bool
}

// New makes an empty host.
func New(o Options) *Host {
	o.RetryPause = cmp.Or(o.RetryPause, time.Second)
	return &Host{
		opts: o, ending: make(chan struct{}), runners: map[Key]*runner{}, broken: map[Key]error{}, resting: map[Key]bool{}, busy: map[Key]chan struct{}{},
	}
}

// take waits until nobody else starts, ends or deletes a replica, and keeps it so until give.
func (h *Host) take(k Key) {
	for {
		h.mu.Lock()
		other := h.busy[k]
		if other == nil {
			h.busy[k] = make(chan struct{})
			h.mu.Unlock()
			return
		}
		h.mu.Unlock()
		<-other
	}
}

func (h *Host) give(k Key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.busy[k])
	delete(h.busy, k)
}

// Add runs the replica of a volume in an open pool. A replica that is there and cannot be opened is remembered with
// the reason.
func (h *Host) Add(pool *store.Pool, id volume.ID) error {
	k := Key{id, pool.Identity().Pool}
	h.mu.Lock()
	why := h.broken[k]
	resting := h.resting[k] && why != nil
	h.mu.Unlock()
	if resting {
		return why // it is tried again in its own time
	}
	h.take(k)
	defer h.give(k)
	return h.add(pool, k)
}

// Create is Add for a replica that create makes; nobody else starts or deletes it meanwhile.
func (h *Host) Create(pool *store.Pool, id volume.ID, create func() error) error {
	k := Key{id, pool.Identity().Pool}
	h.take(k)
	defer h.give(k)
	if err := create(); err != nil {
		return err
	}
	return h.add(pool, k)
}

// add is Add for who has taken the replica.
func (h *Host) add(pool *store.Pool, k Key) error {
	gone := fault.New(fault.Shutdown, "run replica of volume "+k.Volume.String(), "the node ends")
	h.mu.Lock()
	runs, closed := h.runners[k] != nil, h.closed
	h.mu.Unlock()
	switch {
	case closed:
		return gone
	case runs:
		return nil
	}
	r, err := startRunner(h, k, pool)
	h.mu.Lock()
	closed = h.closed
	switch {
	case err == nil && !closed:
		delete(h.broken, k)
		h.runners[k] = r
	case err != nil && !fault.Is(err, fault.NotFound):
		h.broken[k] = err
	}
	h.mu.Unlock()
	if err == nil && closed {
		r.stop()
		return gone
	}
	return err
}

// Remove ends the replica of a volume, if it runs, and waits until its I/O has ended. then, if not nil, is called
// before anybody can start the replica again.
func (h *Host) Remove(k Key, then func() error) error {
	h.take(k)
	defer h.give(k)
	h.mu.Lock()
	r := h.runners[k]
	delete(h.runners, k)
	delete(h.broken, k)
	h.mu.Unlock()
	if r != nil {
		r.stop()
	}
	if then == nil {
		return nil
	}
	return then()
}

// RemovePool ends all replicas of a pool, and forgets those that do not run.
func (h *Host) RemovePool(pool volume.PoolID) {
	h.mu.Lock()
	var keys []Key
	for k := range h.runners {
		keys = append(keys, k)
	}
	for k := range h.broken {
		keys = append(keys, k)
	}
	h.mu.Unlock()
	for _, k := range keys {
		if k.Pool == pool {
			_ = h.Remove(k, nil) // without a step that could fail
		}
	}
}

// Running lists the replicas that run.
func (h *Host) Running() []Key {
	h.mu.Lock()
	defer h.mu.Unlock()
	keys := make([]Key, 0, len(h.runners))
	for k := range h.runners {
		keys = append(keys, k)
	}
	return keys
}

// Fault says why a replica does not run; nil if it does or is not known.
func (h *Host) Fault(k Key) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.broken[k]
}

// Has tells whether a replica runs here.
func (h *Host) Has(k Key) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.runners[k] != nil
}

// Open gives a session to the replica that its first message names.
func (h *Host) Open(first replication.Message, l link.Link) (link.Receiver, error) {
	return h.Accept(Key{first.Volume, first.Pool}, l)
}

// Accept gives a session to a replica.
func (h *Host) Accept(k Key, l link.Link) (link.Receiver, error) {
	h.mu.Lock()
	r, cause := h.runners[k], h.broken[k]
	h.mu.Unlock()
	if r == nil {
		what := "open a session to the replica of volume " + k.Volume.String() + " on pool " + k.Pool.String()
		if cause != nil {
			return nil, fault.Wrap(fault.KindOf(cause), what, cause)
		}
		return nil, fault.New(fault.NotFound, what, "this node has no such replica")
	}
	return r.accept(l)
}

// State gives a copy of a replica's durable state.
func (h *Host) State(k Key) (volume.ReplicaState, bool) {
	h.mu.Lock()
	r := h.runners[k]
	h.mu.Unlock()
	if r == nil {
		return volume.ReplicaState{}, false
	}
	return r.snapshot(), true
}

// Close ends all replicas.
func (h *Host) Close() {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return
	}
	h.closed = true
	runners := h.runners
	h.runners = map[Key]*runner{}
	h.mu.Unlock()
	close(h.ending)
	for _, r := range runners {
		r.stop()
	}
	h.retries.Wait()
}

// failed replaces a runner whose metadata could not be written by a fresh one, after a pause. Its loop calls it.
func (h *Host) failed(k Key, was *runner, why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.resting[k] = true
		h.retries.Go(func() { h.again(k, was, why) })
	}
}

func (h *Host) again(k Key, was *runner, why string) {
	defer func() {
		h.mu.Lock()
		delete(h.resting, k)
		h.mu.Unlock()
	}()
	h.take(k)
	h.mu.Lock()
	same := h.runners[k] == was
	if same {
		delete(h.runners, k)
		h.broken[k] = fault.New(fault.IO, "replica of volume "+k.Volume.String(), why)
	}
	h.mu.Unlock()
	was.stop()
	h.give(k)
	for wait := h.opts.RetryPause; same; wait = min(2*wait, time.Minute) {
		select {
		case <-h.ending:
			return
		case <-time.After(wait):
		}
		h.take(k)
		h.mu.Lock()
		same = h.broken[k] != nil && h.runners[k] == nil // else somebody opened or deleted it meanwhile
		h.mu.Unlock()
		if same && h.add(was.pool, k) == nil {
			same = false
		}
		h.give(k)
	}
}
