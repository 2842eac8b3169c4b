package replicahost

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"samovar/internal/block"
	"samovar/internal/driver/link"
	"samovar/internal/fault"
	"samovar/internal/replication"
	"samovar/internal/store"
	"samovar/internal/store/disk/memory"
	"samovar/internal/volume"
)

const testSize = 8<<20 + 4096 // the last piece is short

var (
	testVolume = volume.ID{7}
	testFence  = volume.Fence{Epoch: 1, Engine: volume.EngineID{1}}
)

// rig is two hosts with a pool each, that find each other within the process.
type rig struct {
	t       *testing.T
	buffers *block.Pool

	mu     sync.Mutex // guards what follows
	hosts  map[volume.PoolID]*Host
	events []Event
	finds  int
	spoil  func(replication.Message) replication.Message // what a copier is told
}

type testPool struct {
	*store.Pool
	fs   *memory.FS
	host *Host
	id   volume.PoolID
}

func newRig(t *testing.T) *rig {
	return &rig{t: t, buffers: block.NewPool(), hosts: map[volume.PoolID]*Host{}}
}

// Connect finds the host of a pool.
func (r *rig) Connect(_ context.Context, target link.Target, recv link.Receiver) (link.Link, error) {
	r.mu.Lock()
	h, spoil := r.hosts[target.Pool], r.spoil
	r.finds++
	r.mu.Unlock()
	if h == nil {
		return nil, fault.New(fault.Unavailable, "find pool "+target.Pool.String(), "not there")
	}
	if spoil != nil {
		recv = spoiler{recv, spoil}
	}
	return link.Local(recv, func(l link.Link) (link.Receiver, error) {
		return h.Accept(Key{Volume: target.Volume, Pool: target.Pool}, l)
	})
}

type spoiler struct {
	link.Receiver
	spoil func(replication.Message) replication.Message
}

func (s spoiler) Received(messages []replication.Message) {
	for i := range messages {
		messages[i] = s.spoil(messages[i])
	}
	s.Receiver.Received(messages)
}

func configuration() volume.Configuration {
	return volume.Configuration{
		Volume: testVolume, Name: "tea", Size: testSize, Layout: volume.Mirrored(testSize, 1<<20), Protocol: "C",
		Groups:     []volume.Group{{Members: []volume.Member{{Pool: volume.PoolID{1}, InSync: true}, {Pool: volume.PoolID{2}, InSync: true}}}},
		Generation: 1, GenerationID: volume.GenerationID{3}, Epoch: 1, Engine: testFence.Engine,
	}
}

// pool makes a pool on a disk of its own and a host for it, with a replica that runs.
func (r *rig) pool(id volume.PoolID) *testPool {
	r.t.Helper()
	p := &testPool{fs: memory.New(1, memory.Options{}), id: id}
	cluster := [16]byte{9}
	check(r.t, store.CreatePool(p.fs, "/pool", store.Identity{Pool: id, Cluster: cluster, Name: "p" + id.String()[:2]}, time.Now()))
	r.open(p)
	c := configuration()
	state := volume.ReplicaState{Volume: c.Volume, Pool: id, Accepted: c, History: []volume.GenerationID{c.GenerationID}}
	check(r.t, p.CreateReplica(c, state, nil))
	check(r.t, p.host.Add(p.Pool, testVolume))
	return p
}

// open opens a pool and starts its host, as a process does that was started again.
func (r *rig) open(p *testPool) {
	r.t.Helper()
	var err error
	p.Pool, err = store.OpenPool(p.fs, "/pool", store.Options{Cluster: [16]byte{9}, Reserve: 64 << 10, Spare: 64 << 10, LogCapacity: 8 << 10})
	check(r.t, err)
	host := New(Options{
		Buffers: r.buffers, Finder: r, Logger: slog.New(slog.DiscardHandler), LogLimit: 4096,
		FetchTimeout: 300 * time.Millisecond, RetryPause: 10 * time.Millisecond,
		Events: func(e Event) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.events = append(r.events, e)
		},
	})
	p.host = host
	r.mu.Lock()
	r.hosts[p.id] = host
	r.mu.Unlock()
	pool := p.Pool
	r.t.Cleanup(func() {
		host.Close()
		if err := pool.Close(); err != nil {
			r.t.Error(err)
		}
	})
}

// close ends a pool's host and closes the pool.
func (r *rig) close(p *testPool) {
	r.t.Helper()
	p.host.Close()
	p.host.Close()
	check(r.t, p.Pool.Close())
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// engine speaks to one replica by hand.
type engine struct {
	t    *testing.T
	pool volume.PoolID
	link link.Link
	id   uint64
	in   chan replication.Message
	gone chan struct{}
}

func (e *engine) Received(messages []replication.Message) {
	for _, m := range messages {
		e.in <- m
	}
}

func (e *engine) Closed(error) { close(e.gone) }

// dial opens a session and raises the fence.
func (r *rig) dial(p *testPool, f volume.Fence) (*engine, replication.Message) {
	r.t.Helper()
	e := r.session(p)
	c := configuration()
	e.send(replication.Message{Kind: replication.Hello, Fence: f, Configuration: &c, Full: true})
	return e, e.next()
}

func (r *rig) session(p *testPool) *engine {
	r.t.Helper()
	e := &engine{t: r.t, pool: p.id, in: make(chan replication.Message, 1000), gone: make(chan struct{})}
	l, err := r.localTo(p, e)
	check(r.t, err)
	e.link = l
	return e
}

func (r *rig) localTo(p *testPool, recv link.Receiver) (link.Link, error) {
	return link.Local(recv, func(l link.Link) (link.Receiver, error) { return p.host.Accept(Key{testVolume, p.id}, l) })
}

func (e *engine) send(m replication.Message) {
	m.Volume, m.Pool = testVolume, e.pool
	e.link.Send([]replication.Message{m})
}

func (e *engine) next() replication.Message {
	e.t.Helper()
	select {
	case m := <-e.in:
		return m
	case <-time.After(20 * time.Second):
		e.t.Fatal("no answer")
		panic("unreachable")
	}
}

func (e *engine) awaitEnd() {
	e.t.Helper()
	select {
	case <-e.gone:
	case <-time.After(20 * time.Second):
		e.t.Fatal("the session goes on")
	}
}

// do sends a request and waits for its answer.
func (e *engine) do(m replication.Message) replication.Message {
	e.t.Helper()
	e.id++
	m.ID = e.id
	e.send(m)
	for {
		if a := e.next(); a.ID == m.ID {
			return a
		}
	}
}

func (e *engine) ok(m replication.Message) {
	e.t.Helper()
	if a := e.do(m); a.Status != fault.None {
		e.t.Fatalf("%v: %v", m.Kind, a.Status)
	}
}

func (e *engine) write(buffers *block.Pool, off uint64, value byte, n int) {
	e.t.Helper()
	b := buffers.Get(n)
	copy(b.Bytes(), bytes.Repeat([]byte{value}, n))
	e.ok(replication.Message{Kind: replication.Write, Range: volume.Range{Offset: off, Length: uint64(n)}, Payload: b})
}

func (e *engine) reads(off uint64, value byte, n int) {
	e.t.Helper()
	a := e.do(replication.Message{Kind: replication.Read, Range: volume.Range{Offset: off, Length: uint64(n)}})
	b, ok := a.Payload.(*block.Buffer)
	if a.Status != fault.None || !ok || !bytes.Equal(b.Bytes(), bytes.Repeat([]byte{value}, n)) {
		e.t.Fatalf("at %d: %v, or other bytes than %d", off, a.Status, value)
	}
	b.Release()
}

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !done() {
		if time.Now().After(deadline) {
			t.Fatal("this did not come true: " + what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}
