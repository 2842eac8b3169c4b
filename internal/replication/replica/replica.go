// Package replica is the state machine of one replica of a volume: fences, sessions, the dirty-region log, recent
// ranges, change records and catching up. Events in (messages, disk results), actions out; no goroutine, clock,
// socket or file. Its owner calls it from one place at a time and carries out what Actions returns.
//
// The life of a write:
//
//	Receive ── recent range, change records marked ──> waiting ── regions durable in the log ──> disk ──> Ack
//	                                                      │ log full: dropped regions make room,
//	                                                      └ else NeedSync asks the engine for a sync
//
// Two lists say what may differ from other replicas. Recent ranges (in memory) are writes that the engine has not
// yet declared completed everywhere; the log (durable, in regions) is what it has not yet declared synced
// everywhere. A new fence turns both into inherited doubt, which only Settled or CatchUp clears.
//
// Requests of a session reach the log in ID order, so that when the log is full every region in it was last used by
// a lower ID than the one that waits: a sync always makes room.
package replica

import (
	"slices"

	"samovar/internal/bitmap"
	"samovar/internal/fault"
	"samovar/internal/replication"
	"samovar/internal/volume"
)

// Replica is the state machine. All fields are owned by its single caller.
type Replica struct {
	opts        Options
	incarnation volume.Incarnation
	state       volume.ReplicaState // as durable, or about to be: nothing is answered before its save is done
	log         dirtyLog
	recents     recents
	records     changeRecords
	missing     *bitmap.Bitmap
	broken      bool // acknowledged writes may be lost; see replication.Knowledge

	sessions map[Session]bool // open connections
	engine   Session          // the session that is welcome; 0: none
	hello    *hello           // a session that waits for older I/O to end; nil: none
	highest  uint64           // highest write-like ID received in this epoch
	consumed uint64           // bytes of writes taken since Welcome
	undone   uint64           // of these, bytes that the medium has not done
	limit    uint64           // what the engine may consume in all
	promised uint64           // limit less consumed, when it was set

	waiting []*work          // write-like requests that wait for the log, in ID order
	fetches map[uint64]*work // copies whose data is being fetched, by fetch token
	disk    map[uint64]func(DiskResult)
	busy    int // data operations of engine sessions under way on the medium
	meta    metaQueue
	token   uint64
	failed  bool
	act     Actions
}

// hello is a session that was asked for and waits for the drain.
type hello struct {
	session Session
	message replication.Message
	saving  bool
}

// work is one write-like request: Write, Zero or Copy.
type work struct {
	session  Session
	message  replication.Message
	copied   replication.Payload // Copy: what was fetched
	from, to uint64              // regions
	planned  bool                // its regions are in the log or on their way there
}

// New makes the state machine of a replica from what the store holds.
func New(o Options, s volume.Stored) *Replica {
	r := &Replica{
		opts: o, incarnation: s.Incarnation, state: s.State, missing: s.Missing.Clone(),
		sessions: map[Session]bool{}, fetches: map[uint64]*work{}, disk: map[uint64]func(DiskResult){},
	}
	r.state.Accepted = s.State.Accepted.Clone()
	r.state.History = slices.Clone(s.State.History)
	r.log = newDirtyLog(o.LogLimit, s.Log)
	r.broken = len(s.Log) > 0
	r.records = newChangeRecords(s.Records)
	r.recents.doubt(r.log.dirtyRanges(r.state.Accepted.Size))
	for _, region := range s.Log {
		// Marks of the last run may not have been saved: the log stands in for them.
		r.records.mark(regionRange(region, region+1, r.state.Accepted.Size))
	}
	return r
}

func regionRange(from, to, size uint64) volume.Range {
	start := from * volume.RegionSize
	return volume.Range{Offset: start, Length: min(to*volume.RegionSize, max(size, start)) - start}
}

// Failed tells that metadata could not be written: everything is refused until the replica is opened again.
func (r *Replica) Failed() bool { return r.failed }

// State is the durable state, for people and for wiring.
func (r *Replica) State() volume.ReplicaState { return r.state }

// Open announces a connection.
func (r *Replica) Open(s Session) { r.sessions[s] = true }

// Close tells that a connection is gone. Its requests go on on the medium; what had not reached it is discarded.
func (r *Replica) Close(s Session) {
	delete(r.sessions, s)
	if r.hello != nil && r.hello.session == s && !r.hello.saving {
		r.hello = nil
	}
	if r.engine == s {
		r.engine = 0
		r.discard()
	}
	r.advance()
}

// discard forgets requests that have not reached the medium. Their recent ranges stay: other replicas may have
// them.
func (r *Replica) discard() {
	for _, w := range r.waiting {
		r.undone -= w.message.Range.Length
	}
	for _, w := range r.fetches {
		r.undone -= w.message.Range.Length
	}
	r.waiting = r.waiting[:0]
	clear(r.fetches)
}

func (r *Replica) hangUp(s Session) {
	if r.sessions[s] {
		r.begin()
		r.act.Hangups = append(r.act.Hangups, s)
		r.Close(s)
	}
}

// SetSpace says how many bytes the medium has for this replica now. What is under way still needs its part of them.
func (r *Replica) SetSpace(free uint64) {
	r.promised = free - min(free, r.undone)
	r.limit = r.consumed + r.promised
}

// SpaceLow asks for SetSpace: half of the last promise is used.
func (r *Replica) SpaceLow() bool {
	return r.promised > 0 && r.limit-min(r.limit, r.consumed) < r.promised/2
}

// Actions returns what to do since the last call.
func (r *Replica) Actions() *Actions {
	if r.act.taken {
		r.act.reset()
	}
	r.act.taken = true
	return &r.act
}

func (r *Replica) send(s Session, m replication.Message) {
	if r.sessions[s] {
		r.begin()
		m.Volume, m.Pool = r.state.Volume, r.state.Pool
		r.act.Sends = append(r.act.Sends, Send{Session: s, Message: m})
	}
}

func (r *Replica) ack(s Session, id uint64, status fault.Kind) {
	if s == r.engine {
		r.send(s, replication.Message{Kind: replication.Ack, ID: id, Status: status, Credit: r.limit})
	}
}

func (r *Replica) event(reason, text string) {
	r.begin()
	r.act.Events = append(r.act.Events, Event{Reason: reason, Text: text})
}

// begin starts a fresh gathering of actions if the last one was taken.
func (r *Replica) begin() {
	if r.act.taken {
		r.act.reset()
		r.act.taken = false
	}
}

// issue puts a request on the medium; done runs when its result arrives.
func (r *Replica) issue(q DiskRequest, done func(DiskResult)) {
	r.begin()
	r.token++
	q.Token = r.token
	r.disk[q.Token] = done
	r.act.Disk = append(r.act.Disk, q)
}

// issueData is issue for data operations of engines, which a new fence waits for.
func (r *Replica) issueData(q DiskRequest, done func(DiskResult)) {
	r.busy++
	r.issue(q, func(res DiskResult) {
		r.busy--
		done(res)
	})
}

// Done takes the result of a disk request.
func (r *Replica) Done(res DiskResult) {
	done := r.disk[res.Token]
	delete(r.disk, res.Token)
	if done != nil {
		done(res)
	}
	r.advance()
}

// fail gives the replica up: what it promised to keep durable it cannot.
func (r *Replica) fail(what string) {
	if r.failed {
		return
	}
	r.failed = true
	r.event("metadata-failed", "the replica's "+what+" could not be written; it is unusable until it is opened again")
	for _, s := range r.openSessions() {
		r.hangUp(s)
	}
}

func (r *Replica) openSessions() []Session {
	all := make([]Session, 0, len(r.sessions))
	for s := range r.sessions {
		all = append(all, s)
	}
	slices.Sort(all)
	return all
}

// advance is run after every event: it derives all follow-up work from the state.
func (r *Replica) advance() {
	if r.failed {
		return
	}
	r.admitHello()
	r.pumpLog()
}
