// Package enginehost runs one engine: the owner goroutine of its state machine, its sessions, its requests to the
// cluster store, and the block device that exports see. It knows links and a Recorder; it does not know pools, the
// cluster store's own types, or exports.
package enginehost

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"samovar/internal/block"
	"samovar/internal/driver/inbox"
	"samovar/internal/driver/link"
	"samovar/internal/fault"
	"samovar/internal/replication"
	"samovar/internal/replication/engine"
	"samovar/internal/volume"
)

// Recorder reaches a volume's record in the cluster store.
type Recorder interface {
	// Propose writes next if the record still has revision next.Revision.
	Propose(ctx context.Context, next volume.Configuration) (engine.Outcome, volume.Configuration)
	// Look reads the record linearizably.
	Look(ctx context.Context, id volume.ID) (volume.Configuration, error)
}

// Connector opens sessions to replicas.
type Connector interface {
	Connect(ctx context.Context, t link.Target, r link.Receiver) (link.Link, error)
}

// Options of an Attachment.
type Options struct {
	Engine    engine.Options
	Recorder  Recorder
	Connector Connector
	Buffers   *block.Pool
	Logger    *slog.Logger
	Events    func(engine.Event) // must not block
	// StoreTimeout bounds one call of the cluster store.
	StoreTimeout time.Duration
	// MaxRequests and MaxBytes bound what is in flight at once; Submit waits beyond them.
	MaxRequests int
	MaxBytes    int64
}

// Attachment is a running engine.
type Attachment struct {
	opts   Options
	in     *inbox.Inbox[event]
	ctx    context.Context
	cancel context.CancelFunc
	status atomic.Pointer[engine.Status]
	served chan struct{} // closed when it serves, or has ended
	ended  chan struct{} // closed when the loop has ended
	gate   *gate
	tasks  sync.WaitGroup
	next   atomic.Uint64 // session numbers

	// The loop alone touches these.
	eng     *engine.Engine
	record  volume.Configuration
	links   map[volume.PoolID]*end
	sending map[*end][]replication.Message
	slots   slots
	ready   bool
}

type eventKind uint8

const (
	eventRequests eventKind = iota
	eventMessages
	eventConnected
	eventDialFailed
	eventClosed
	eventProposed
	eventLooked
	eventDetach
	eventHold
	eventRelease
	eventStop
)

// event is one input of the state machine.
type event struct {
	kind     eventKind
	requests []*block.Request
	hold     *hold
	end      *end
	pool     volume.PoolID
	messages []replication.Message
	token    uint64
	outcome  engine.Outcome
	status   fault.Kind
	record   volume.Configuration
}

// end is the engine's end of a session.
type end struct {
	a       *Attachment
	pool    volume.PoolID
	session engine.Session
	link    link.Link
	dead    bool // closed; the loop alone touches it
}

// Received takes messages of a replica.
func (x *end) Received(messages []replication.Message) {
	x.a.in.Put(event{kind: eventMessages, end: x, messages: append([]replication.Message(nil), messages...)})
}

// Closed tells that the session is gone.
func (x *end) Closed(err error) {
	x.a.opts.Logger.Debug("the session with a replica is gone", "volume", x.a.record.Name, "pool", x.pool.String(), "error", err)
	x.a.in.Put(event{kind: eventClosed, end: x})
}

// Now is the clock of leases: it counts suspension and is not set.
func Now() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("clock_gettime(CLOCK_BOOTTIME): " + err.Error()) // Linux has had it since 2.6.39
	}
	return time.Duration(ts.Nano())
}

// Start runs an engine that attaches the volume of record.
func Start(o Options, record volume.Configuration) *Attachment {
	a := &Attachment{
		opts: o, in: inbox.New[event](), served: make(chan struct{}), ended: make(chan struct{}),
		gate: newGate(o.MaxRequests, o.MaxBytes), record: record,
		links: map[volume.PoolID]*end{}, sending: map[*end][]replication.Message{},
	}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	a.eng = engine.New(o.Engine, record, Now())
	a.publish()
	go a.loop()
	return a
}

func (a *Attachment) publish() {
	s := a.eng.Status()
	a.status.Store(&s)
	if !a.ready && s.Phase >= engine.Serving {
		a.ready = true
		close(a.served)
	}
}

// Status tells how the engine stands.
func (a *Attachment) Status() engine.Status { return *a.status.Load() }

// Volume is the volume's id.
func (a *Attachment) Volume() volume.ID { return a.record.Volume }

// Serving waits until the engine serves; an error says why it never will, or that ctx ended first.
func (a *Attachment) Serving(ctx context.Context) error {
	what := "attach volume " + a.record.Name
	select {
	case <-a.served:
	case <-a.ended:
	case <-ctx.Done():
		return fault.New(fault.Unavailable, what, "not attached yet: "+a.Status().Suspended)
	}
	s := a.Status()
	select {
	case <-a.ended:
	default:
		if s.Phase != engine.Ended {
			return nil
		}
	}
	if s.Reason == fault.None {
		return fault.New(fault.Unavailable, what, "it was detached meanwhile; try again")
	}
	return fault.New(s.Reason, what, s.Text)
}

// Ended is closed when the engine has ended.
func (a *Attachment) Ended() <-chan struct{} { return a.ended }

// Detach drains, syncs and gives the record back; an error says that ctx ended first, and it goes on.
func (a *Attachment) Detach(ctx context.Context) error {
	a.in.Put(event{kind: eventDetach})
	select {
	case <-a.ended:
	case <-ctx.Done():
		return fault.New(fault.Unavailable, "detach volume "+a.record.Name, "still draining: "+a.Status().Suspended)
	}
	switch s := a.Status(); s.Reason {
	case fault.None, fault.Fenced, fault.Aborted: // Aborted: before it served
	default:
		return fault.New(s.Reason, "detach volume "+a.record.Name, s.Text)
	}
	return nil
}

// Abort ends the engine as a crash would: nothing is drained.
func (a *Attachment) Abort() {
	a.in.Put(event{kind: eventStop})
	<-a.ended
}

// loop is the owner.
func (a *Attachment) loop() {
	defer close(a.ended)
	tick := time.NewTicker(a.opts.Engine.PingInterval / 4)
	defer tick.Stop()
	a.carryOut()
	var events []event
	for {
		select {
		case <-a.in.Wake():
			a.eng.Clock(Now())
		case <-tick.C:
			a.eng.Tick(Now())
			a.carryOut()
			a.publish()
		}
		events = a.in.Take(events)
		stop := false
		for i := range events {
			stop = stop || events[i].kind == eventStop
			a.step(&events[i])
			a.carryOut()
		}
		clear(events)
		a.flush()
		if !a.ready && len(events) > 0 {
			a.publish()
		}
		if stop || a.over() {
			a.shutdown()
			return
		}
	}
}

// over tells whether the engine has ended.
func (a *Attachment) over() bool { return a.eng.Phase() == engine.Ended }

func (a *Attachment) step(e *event) {
	switch e.kind {
	case eventRequests:
		a.submit(e.requests)
	case eventMessages:
		if a.links[e.end.pool] == e.end {
			for i := range e.messages {
				a.eng.Receive(e.end.pool, e.end.session, e.messages[i])
				a.carryOut()
			}
		}
	case eventConnected:
		switch {
		case e.end.dead: // it went before it was announced
			a.eng.DialFailed(e.pool)
		case a.links[e.pool] == nil:
			a.links[e.pool] = e.end
			a.eng.Connected(e.pool, e.end.session)
		default:
			e.end.link.Close()
		}
	case eventDialFailed:
		a.eng.DialFailed(e.pool)
	case eventClosed:
		e.end.dead = true
		if a.links[e.end.pool] == e.end {
			delete(a.links, e.end.pool)
			delete(a.sending, e.end)
			a.eng.Disconnected(e.end.pool, e.end.session)
		}
	case eventProposed:
		a.eng.Proposed(e.token, e.outcome, e.record)
	case eventLooked:
		a.eng.Looked(e.token, e.status, e.record)
	case eventHold:
		e.hold.id = a.slots.put(&slot{hold: e.hold})
		a.eng.Submit([]engine.Request{{ID: e.hold.id, Op: replication.Fetch, Range: e.hold.at}})
	case eventRelease:
		a.release(e.hold)
	case eventDetach:
		a.eng.Detach()
	}
}

// carryOut does what the state machine asks for; sends are gathered until flush.
func (a *Attachment) carryOut() {
	act := a.eng.Actions()
	for i := range act.Sends {
		s := &act.Sends[i]
		x := a.links[s.Pool]
		if x == nil || x.session != s.Session {
			continue
		}
		m := s.Message
		if c, ok := m.Payload.(*carried); ok {
			m.Payload = nil
			if c.data != nil {
				m.Payload = c.data.Retain()
			}
		}
		a.sending[x] = append(a.sending[x], m)
	}
	for i := range act.Completions {
		a.complete(&act.Completions[i])
	}
	for _, p := range act.Released {
		a.released(p)
	}
	for _, p := range act.Proposals {
		a.propose(p)
	}
	for _, token := range act.Looks {
		a.lookUp(token)
	}
	for _, g := range act.Hangups {
		if x := a.links[g.Pool]; x != nil && x.session == g.Session {
			a.sendNow(x)
			x.link.Hangup()
			delete(a.links, g.Pool)
			delete(a.sending, x)
		}
	}
	for _, pool := range act.Dials {
		a.dial(pool)
	}
	for _, ev := range act.Events {
		a.opts.Events(ev)
	}
	if len(act.Events) > 0 {
		a.publish()
	}
}

func (a *Attachment) sendNow(x *end) {
	if batch := a.sending[x]; len(batch) > 0 {
		x.link.Send(batch)
		clear(batch)
		a.sending[x] = batch[:0]
	}
}

// flush sends what was gathered, one batch for each session.
func (a *Attachment) flush() {
	for x := range a.sending {
		a.sendNow(x)
	}
}

func (a *Attachment) dial(pool volume.PoolID) {
	x := &end{a: a, pool: pool, session: engine.Session(a.next.Add(1))}
	record := a.eng.Record()
	t := link.Target{Volume: record.Volume, Pool: pool, Epoch: record.Epoch, Size: record.Size}
	a.tasks.Go(func() {
		l, err := a.opts.Connector.Connect(a.ctx, t, x)
		if err != nil {
			a.opts.Logger.Debug("cannot reach a replica", "volume", a.record.Name, "pool", pool.String(), "error", err)
			a.in.Put(event{kind: eventDialFailed, pool: pool})
			return
		}
		x.link = l
		if !a.in.Put(event{kind: eventConnected, pool: pool, end: x}) {
			l.Close()
		}
	})
}

func (a *Attachment) propose(p engine.Proposal) {
	a.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(a.ctx, a.opts.StoreTimeout)
		defer cancel()
		outcome, current := a.opts.Recorder.Propose(ctx, p.Next)
		a.in.Put(event{kind: eventProposed, token: p.Token, outcome: outcome, record: current})
	})
}

func (a *Attachment) lookUp(token uint64) {
	a.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(a.ctx, a.opts.StoreTimeout)
		defer cancel()
		current, err := a.opts.Recorder.Look(ctx, a.record.Volume)
		status := fault.KindOf(err)
		if err != nil && status != fault.NotFound {
			status = fault.Unavailable
		}
		a.in.Put(event{kind: eventLooked, token: token, status: status, record: current})
	})
}

// shutdown closes everything; whatever still waits gets an error.
func (a *Attachment) shutdown() {
	a.cancel()
	a.gate.end()
	a.carryOut()
	a.flush()
	for _, x := range a.links {
		x.link.Hangup()
	}
	a.tasks.Wait()
	for _, e := range a.in.Close() {
		switch e.kind {
		case eventConnected:
			e.end.link.Close()
		case eventRequests:
			for _, q := range e.requests {
				a.refuse(q, fault.New(fault.Shutdown, q.Op.String(), "the volume is no longer attached here"))
			}
		}
	}
	a.slots.each(func(q *block.Request) {
		a.answer(q, fault.New(fault.Aborted, q.Op.String(), "the engine ended"))
	})
	a.publish()
}
