package enginehost

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
	"samovar/internal/replication/engine"
	"samovar/internal/volume"
)

const testSize = 200 << 20

var testVolume = volume.ID{7}

// register is a cluster store with one record.
type register struct {
	mu     sync.Mutex // guards what follows
	record volume.Configuration
	away   bool
}

func (r *register) Propose(_ context.Context, next volume.Configuration) (engine.Outcome, volume.Configuration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.away:
		return engine.Unknown, volume.Configuration{}
	case next.Revision != r.record.Revision:
		return engine.Conflict, r.record.Clone()
	}
	next.Revision++
	r.record = next.Clone()
	return engine.Applied, next
}

func (r *register) Look(context.Context, volume.ID) (volume.Configuration, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.away {
		return volume.Configuration{}, fault.New(fault.Unavailable, "look", "away")
	}
	return r.record.Clone(), nil
}

func (r *register) setAway(away bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.away = away
}

// copies are stand-ins for replicas: they keep bytes in memory and obey whoever speaks to them.
type copies struct {
	buffers *block.Pool

	mu        sync.Mutex // guards what follows
	data      map[volume.PoolID][]byte
	held      []func() // answers that are held back
	holding   bool
	stillborn int                                           // sessions that end before they are announced
	spoil     func(replication.Message) replication.Message // answers
	dials     int
}

// copySession is the far end of a session.
type copySession struct {
	c    *copies
	pool volume.PoolID
	link link.Link
}

func (c *copies) Connect(_ context.Context, t link.Target, r link.Receiver) (link.Link, error) {
	c.mu.Lock()
	c.dials++
	dead := c.stillborn > 0
	if dead {
		c.stillborn--
	}
	c.mu.Unlock()
	l, err := link.Local(r, func(far link.Link) (link.Receiver, error) { return &copySession{c, t.Pool, far}, nil })
	if dead {
		l.Close()
	}
	return l, err
}

func (s *copySession) Closed(error) {}

// Received answers in a goroutine of its own: a receiver must not call its link back.
func (s *copySession) Received(messages []replication.Message) {
	for _, m := range messages {
		answer, ok := s.answer(m)
		if !ok {
			continue
		}
		answer.Volume, answer.Pool = m.Volume, m.Pool
		s.c.mu.Lock()
		if s.c.spoil != nil {
			answer = s.c.spoil(answer)
		}
		send := func() { go s.link.Send([]replication.Message{answer}) }
		work := m.Kind == replication.Write || m.Kind == replication.Zero || m.Kind == replication.Sync
		if s.c.holding && work {
			s.c.held = append(s.c.held, send)
		} else {
			send()
		}
		s.c.mu.Unlock()
	}
}

func (s *copySession) answer(m replication.Message) (replication.Message, bool) {
	a := replication.Message{Kind: replication.Ack, ID: m.ID, Credit: 1 << 40}
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	data := s.c.data[s.pool]
	at := data[min(m.Range.Offset, testSize):min(m.Range.End(), testSize)]
	switch m.Kind {
	case replication.Hello:
		return replication.Message{
			Kind: replication.Welcome, Fence: m.Fence, Credit: 1 << 40,
			Knowledge: &replication.Knowledge{Incarnation: volume.Incarnation{1}, Accepted: m.Configuration.Clone(), Size: testSize},
		}, true
	case replication.Ping:
		return replication.Message{Kind: replication.Pong, Stamp: m.Stamp, Credit: 1 << 40}, true
	case replication.Write:
		b := m.Payload.(*block.Buffer)
		copy(at, b.Bytes())
		b.Release()
	case replication.Zero:
		clear(at)
	case replication.Read:
		b := s.c.buffers.Get(len(at))
		copy(b.Bytes(), at)
		a.Payload, a.Range = b, m.Range
	}
	return a, true
}

// hold keeps answers to changes back; let gives them.
func (c *copies) hold() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.holding = true
}

func (c *copies) let() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.holding = false
	for _, send := range c.held {
		send()
	}
	c.held = nil
}

func (c *copies) waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.held)
}

type rig struct {
	*Attachment
	t      *testing.T
	store  *register
	copies *copies
}

func testRecord() volume.Configuration {
	return volume.Configuration{
		Volume: testVolume, Name: "tea", Size: testSize, Layout: volume.Mirrored(testSize, 64<<20), Protocol: "C",
		Groups:     []volume.Group{{Members: []volume.Member{{Pool: volume.PoolID{1}, InSync: true}, {Pool: volume.PoolID{2}, InSync: true}}}},
		Generation: 1, GenerationID: volume.GenerationID{3}, Revision: 5,
	}
}

// start begins an attachment; change, if not nil, changes its surroundings first.
func start(t *testing.T, change func(*rig, *Options)) *rig {
	t.Helper()
	r := &rig{t: t, store: &register{record: testRecord()}, copies: &copies{buffers: block.NewPool(), data: map[volume.PoolID][]byte{
		{1}: make([]byte, testSize), {2}: make([]byte, testSize),
	}}}
	const ping = time.Second
	o := Options{
		Engine: engine.Options{
			Engine: volume.EngineID{1}, Node: "a", Mode: "explicit", PingInterval: ping / 10, PingTimeout: ping, Lease: ping,
			AttachWait: ping, CopyDeadline: ping, SyncInterval: time.Minute, RetryDelay: 10 * time.Millisecond, Copies: 4, CopyBlocks: 16,
			NewGeneration: func() volume.GenerationID { return volume.GenerationID{byte(time.Now().UnixNano())} },
		},
		Recorder: r.store, Connector: r.copies, Buffers: r.copies.buffers, Logger: slog.New(slog.DiscardHandler),
		Events: func(engine.Event) {}, StoreTimeout: time.Second, MaxRequests: 8, MaxBytes: 1 << 20,
	}
	if change != nil {
		change(r, &o)
	}
	r.Attachment = Start(o, r.store.record.Clone())
	t.Cleanup(func() {
		r.copies.let()
		r.Abort()
	})
	return r
}

func serving(t *testing.T, change func(*rig, *Options)) *rig {
	t.Helper()
	r := start(t, change)
	check(t, r.Serving(within(t)))
	return r
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// pending is a request under way.
type pending struct {
	t    *testing.T
	q    *block.Request
	done chan error
}

func (r *rig) request(op block.Op, off, n uint64, value byte) *pending {
	p := &pending{r.t, &block.Request{Op: op, Offset: off, Length: n}, make(chan error, 2)}
	if op == block.Write {
		p.q.Data = r.copies.buffers.Get(int(n))
		copy(p.q.Data.Bytes(), bytes.Repeat([]byte{value}, int(n)))
	}
	p.q.Done = func(q *block.Request, err error) {
		if q.Op == block.Write {
			q.Data.Release()
		}
		p.done <- err
	}
	return p
}

func (p *pending) wait() error {
	p.t.Helper()
	select {
	case err := <-p.done:
		return err
	case <-time.After(20 * time.Second):
		p.t.Fatalf("a %v was not answered", p.q.Op)
		return nil
	}
}

func (p *pending) over() bool { return len(p.done) > 0 }

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
