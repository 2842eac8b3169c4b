package replicahost

import (
	"sync"
	"sync/atomic"
	"time"

	"samovar/internal/driver/inbox"
	"samovar/internal/driver/link"
	"samovar/internal/fault"
	"samovar/internal/replication"
	"samovar/internal/replication/replica"
	"samovar/internal/store"
	"samovar/internal/volume"
)

// runner owns one replica's state machine.
type runner struct {
	host  *Host
	key   Key
	pool  *store.Pool
	store *store.Replica
	in    *inbox.Inbox[event]
	ended chan struct{}
	next  atomic.Uint64 // session numbers
	state atomic.Pointer[volume.ReplicaState]

	// The loop alone touches these.
	rep      *replica.Replica
	links    map[replica.Session]link.Link
	sending  map[replica.Session][]replication.Message
	ops      []*store.Op
	fetchers map[volume.PoolID]*fetcher
	gaveUp   bool
	damaged  bool // the store found a file that cannot be true
	unknown  bool // how much space is free

	stopping sync.Once
}

type eventKind uint8

const (
	eventOpen eventKind = iota
	eventMessage
	eventClosed
	eventDisk
	eventFetched
	eventStop
)

// event is one input of the state machine.
type event struct {
	kind    eventKind
	session replica.Session
	link    link.Link
	message replication.Message
	disk    replica.DiskResult
	fetched replica.FetchResult
}

func startRunner(h *Host, k Key, pool *store.Pool) (*runner, error) {
	st, stored, err := pool.OpenReplica(k.Volume)
	if err != nil {
		return nil, err
	}
	r := &runner{
		host: h, key: k, pool: pool, store: st, in: inbox.New[event](), ended: make(chan struct{}),
		links: map[replica.Session]link.Link{}, sending: map[replica.Session][]replication.Message{},
		fetchers: map[volume.PoolID]*fetcher{},
	}
	r.rep = replica.New(replica.Options{LogLimit: h.opts.LogLimit, RecentLimit: 1024}, stored)
	r.publish()
	go r.loop()
	return r, nil
}

func (r *runner) publish() {
	s := r.rep.State()
	s.Accepted = s.Accepted.Clone()
	s.History = append([]volume.GenerationID(nil), s.History...)
	r.state.Store(&s)
}

func (r *runner) snapshot() volume.ReplicaState { return *r.state.Load() }

// stop ends the runner and waits for its I/O.
func (r *runner) stop() {
	r.stopping.Do(func() { r.in.Put(event{kind: eventStop}) })
	<-r.ended
}

// session is the receiving end of one session.
type session struct {
	r  *runner
	id replica.Session
}

func (r *runner) accept(l link.Link) (link.Receiver, error) {
	s := session{r, replica.Session(r.next.Add(1))}
	if !r.in.Put(event{kind: eventOpen, session: s.id, link: l}) {
		return nil, fault.New(fault.Unavailable, "open a session to the replica of volume "+r.key.Volume.String(), "it has just ended on this node")
	}
	return s, nil
}

func (s session) Received(messages []replication.Message) {
	events := make([]event, len(messages))
	for i := range messages {
		events[i] = event{kind: eventMessage, session: s.id, message: messages[i]}
	}
	s.r.in.Put(events...)
}

func (s session) Closed(error) { s.r.in.Put(event{kind: eventClosed, session: s.id}) }

// loop is the owner.
func (r *runner) loop() {
	defer close(r.ended)
	space := time.NewTicker(500 * time.Millisecond)
	defer space.Stop()
	r.measureSpace()
	var events []event
	for {
		select {
		case <-r.in.Wake():
		case <-space.C:
			r.measureSpace()
			r.publish()
		}
		events = r.in.Take(events)
		for i := range events {
			if events[i].kind == eventStop {
				r.shutdown(events[i:])
				return
			}
			r.step(&events[i])
			r.carryOut()
		}
		clear(events)
		r.flush()
		if r.rep.SpaceLow() {
			r.measureSpace()
		}
		if (r.rep.Failed() || r.damaged) && !r.gaveUp {
			r.gaveUp = true
			why := "its metadata could not be written; it is opened again in a moment"
			if r.damaged {
				why = "its data file was damaged while it was in use; it is opened again in a moment, if it can be"
			}
			r.host.failed(r.key, r, why)
		}
	}
}

// measureSpace tells the state machine how much it may promise: a share of what the pool has, so that several
// replicas do not promise the same bytes often. A promise that cannot be kept costs a reservation, not data.
func (r *runner) measureSpace() {
	const most = 256 << 20
	free, err := r.pool.Available()
	if err != nil && !r.unknown {
		r.host.opts.Logger.Warn("cannot measure free space", "volume", r.key.Volume.String(), "error", err)
	}
	if r.unknown = err != nil; r.unknown {
		free = 0
	}
	r.rep.SetSpace(min(free/4, most))
}

func (r *runner) step(e *event) {
	switch e.kind {
	case eventOpen:
		r.links[e.session] = e.link
		r.rep.Open(e.session)
	case eventMessage:
		r.rep.Receive(e.session, e.message)
	case eventClosed:
		delete(r.links, e.session)
		delete(r.sending, e.session)
		r.rep.Close(e.session)
	case eventDisk:
		r.damaged = r.damaged || e.disk.Status == fault.Corrupt
		r.rep.Done(e.disk)
	case eventFetched:
		r.rep.Fetched(e.fetched)
	}
}

// carryOut gathers what the state machine wants done; flush does it for the whole batch of events.
func (r *runner) carryOut() {
	a := r.rep.Actions()
	for i := range a.Disk {
		r.ops = append(r.ops, r.operation(&a.Disk[i]))
	}
	for i := range a.Sends {
		s := a.Sends[i].Session
		r.sending[s] = append(r.sending[s], a.Sends[i].Message)
	}
	for _, f := range a.Fetches {
		r.fetch(f)
	}
	for _, s := range a.Hangups {
		if l := r.links[s]; l != nil {
			if batch := r.sending[s]; len(batch) > 0 {
				l.Send(batch)
				r.sending[s] = batch[:0]
			}
			l.Hangup()
			delete(r.links, s)
		}
		delete(r.sending, s)
	}
	for _, ev := range a.Events {
		r.host.opts.Events(Event{Volume: r.key.Volume, Pool: r.key.Pool, Reason: ev.Reason, Text: ev.Text})
	}
}

// flush submits all disk operations at once and sends each session's messages at once.
func (r *runner) flush() {
	if len(r.ops) > 0 {
		r.store.Submit(r.ops)
		clear(r.ops)
		r.ops = r.ops[:0]
	}
	for s, batch := range r.sending {
		l := r.links[s]
		if l == nil {
			delete(r.sending, s)
			continue
		}
		if len(batch) == 0 {
			continue
		}
		l.Send(batch)
		clear(batch)
		r.sending[s] = batch[:0]
	}
}

// shutdown closes everything; events are those that came with the stop or after it.
func (r *runner) shutdown(events []event) {
	for _, l := range r.links {
		l.Close()
	}
	for _, f := range r.fetchers {
		f.close()
	}
	if err := r.store.Close(); err != nil {
		r.host.opts.Logger.Warn("closing a replica", "volume", r.key.Volume.String(), "error", err)
	}
	for _, list := range [2][]event{events, r.in.Close()} {
		for _, e := range list {
			if e.kind == eventOpen {
				e.link.Close()
			}
		}
	}
}

func kindOf(err error) fault.Kind {
	if err == nil {
		return fault.None
	}
	return fault.KindOf(err)
}
