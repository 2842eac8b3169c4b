// Package engine is the state machine of the one writer of a volume: it claims the record, fences replicas, orders
// all I/O, decides who is in-sync, and brings replicas back. Events in (requests, messages, answers of the cluster
// store, time), actions out; no goroutine, clock, socket or file. Its owner calls it from one place at a time and
// carries out what Actions returns.
//
//	Claiming ─> Fencing ─> Waiting ─> Settling ─> Serving ─> Detaching ─> Ended
//	    └───────────┴──────────┴─────────┴───────────┴── another engine in the record ──┘
//
// After every event the same maintenance runs (advance): phases, changes of the in-sync set, copies, admission and
// completion are all derived from state. Rule numbers in comments are those of docs/replication.md.
package engine

import (
	"time"

	"samovar/internal/bitmap"
	"samovar/internal/fault"
	"samovar/internal/replication"
	"samovar/internal/volume"
)

// Engine is the state machine. All fields are owned by its single caller.
type Engine struct {
	opts    Options
	now     time.Duration
	ticked  time.Duration // at the last Tick
	ran     time.Duration // how long this engine has run in all
	phase   Phase
	since   time.Duration // engine-run time in this phase
	reason  fault.Kind
	text    string
	record  volume.Configuration // as last confirmed by the cluster store
	claim   claim
	members []*member

	lastFence    time.Duration // when the last needed fence was confirmed
	quiet        bool          // the record was detached before the claim: no older lease can run
	lossy        bool
	settled      bool           // doubt of older epochs is gone and Settled was sent
	settling     *op            // the sync that ends the doubt
	settleAt     time.Duration  // not before: the last one failed
	source       *member        // of doubtful ranges
	sourceBroken bool           // it was when it was chosen
	oldDoubt     *bitmap.Bitmap // blocks in doubt when this epoch began, until they are settled

	nextID      uint64
	queue       []*op // not yet started, in order of arrival
	active      []*op // started, not finished, in order of start
	byID        map[uint64]*op
	settleFloor uint64 // first copy of this settlement; the completed watermark stays below it; 0: none
	completed   uint64 // watermarks, see replication.Message
	flushed     uint64

	unsynced *bitmap.Bitmap // sectors acknowledged since the last sync was started
	suspect  *bitmap.Bitmap // sectors that the last member may have lost: syncs fail until they are rewritten
	dirtyID  uint64         // the last write or settling copy that was started
	distrust uint64         // syncs with a lower ID do not count: the last member failed one, or restarted
	wantSync bool
	syncs    int           // internal syncs under way
	lastSync time.Duration // when the last sync was started

	change   *change
	out      uint32 // members removed in the record, not yet durably so on those that remain
	joiner   *member
	parting  *op           // Detaching: the last sync
	retryAt  time.Duration // when the cluster store is asked again
	retries  uint
	token    uint64
	copied   uint64        // bytes of ranges copied
	progress time.Duration // when the progress of copying was last made durable
	act      Actions
}

// maxEpoch is far beyond what starts of engines can reach.
const maxEpoch = 1 << 62

// claim is the compare-and-swap that makes this engine the volume's.
type claim struct {
	next  volume.Configuration
	token uint64 // of the proposal or look under way; 0: none
}

// New makes an engine that claims record. Its first action is the proposal of the claim.
func New(o Options, record volume.Configuration, now time.Duration) *Engine {
	e := &Engine{
		opts: o, now: now, ticked: now, phase: Claiming, byID: map[uint64]*op{}, nextID: 1,
		unsynced: &bitmap.Bitmap{}, suspect: &bitmap.Bitmap{}, lastSync: now, progress: now,
	}
	if err := record.Validate(); err != nil {
		e.end(fault.KindOf(err), err.Error())
		return e
	}
	e.claimAbove(record, record.Epoch)
	return e
}

// claimAbove proposes this engine with an epoch above floor.
func (e *Engine) claimAbove(record volume.Configuration, floor volume.Epoch) {
	e.phase, e.since = Claiming, 0
	e.quiet = record.Engine == volume.EngineID{}
	next := record.Clone()
	next.Epoch = max(record.Epoch, floor) + 1
	next.Engine, next.Holder, next.Mode = e.opts.Engine, e.opts.Node, e.opts.Mode
	e.claim.next = next
	e.claim.token = e.propose(next)
}

func (e *Engine) propose(next volume.Configuration) uint64 {
	e.begin()
	e.token++
	e.act.Proposals = append(e.act.Proposals, Proposal{Token: e.token, Next: next.Clone()})
	return e.token
}

func (e *Engine) lookUp() uint64 {
	e.begin()
	e.token++
	e.act.Looks = append(e.act.Looks, e.token)
	return e.token
}

// Clock sets the time (of a clock that counts suspension too) before other calls.
func (e *Engine) Clock(now time.Duration) { e.now = max(e.now, now) }

// Tick runs the timers. Deadlines count only time in which the engine itself ran: a long gap between two ticks
// counts as a short one (rule 23).
func (e *Engine) Tick(now time.Duration) {
	e.Clock(now)
	ran := min(e.now-e.ticked, 2*e.opts.PingInterval)
	e.ticked = e.now
	if e.phase == Ended {
		return
	}
	e.since += ran
	e.ran += ran
	e.watch(ran)
	e.watchSlow(ran)
	e.retryStore()
	e.failStopped()
	e.advance()
}

// Actions returns what to do since the last call.
func (e *Engine) Actions() *Actions {
	if e.act.taken {
		e.act.reset()
	}
	e.act.taken = true
	return &e.act
}

// begin starts a fresh gathering of actions if the last one was taken.
func (e *Engine) begin() {
	if e.act.taken {
		e.act.reset()
		e.act.taken = false
	}
}

func (e *Engine) event(reason string, m *member, text string, bytes uint64) {
	e.begin()
	ev := Event{Reason: reason, Text: text, Bytes: bytes}
	if m != nil {
		ev.Pool = m.pool
	}
	e.act.Events = append(e.act.Events, ev)
}

// advance derives all follow-up work from the state; it runs after every event.
func (e *Engine) advance() {
	if e.phase == Ended {
		return
	}
	e.advancePhase()
	if e.phase == Ended || e.phase < Settling {
		return
	}
	e.advanceChange()
	e.finish()
	e.advanceCopies()
	e.admit()
	e.advanceDetach()
}

// end ends the engine: whatever waits is failed, nothing more is answered (rule 9).
func (e *Engine) end(kind fault.Kind, text string) {
	if e.phase == Ended {
		return
	}
	e.phase, e.reason, e.text = Ended, kind, text
	if kind != fault.None {
		e.event("engine-ended", nil, text, 0)
	}
	answer := kind
	if answer == fault.None {
		answer = fault.Shutdown
	}
	for _, o := range append(e.active, e.queue...) {
		e.reply(o, answer, nil)
		e.release(o)
	}
	e.active, e.queue, e.byID = nil, nil, map[uint64]*op{}
	for _, m := range e.members {
		e.hangUp(m)
	}
}

// Proposed takes the answer to a Proposal.
func (e *Engine) Proposed(token uint64, o Outcome, current volume.Configuration) {
	if e.phase == Ended {
		return
	}
	if token == e.claim.token && token != 0 {
		e.claim.token = 0
		if e.phase == Detaching {
			e.parted(o, current)
		} else {
			e.claimed(o, current)
		}
	} else if c := e.change; c != nil && token == c.token {
		c.token = 0
		e.changeProposed(o, current)
	}
	e.advance()
}

// Looked takes the answer to a Look.
func (e *Engine) Looked(token uint64, status fault.Kind, current volume.Configuration) {
	if e.phase == Ended {
		return
	}
	switch {
	case token == 0:
	case token == e.claim.token:
		e.claim.token = 0
		e.claimLooked(status, current)
	case e.change != nil && token == e.change.token:
		e.change.token = 0
		e.changeLooked(status, current)
	}
	e.advance()
}

// ours tells whether a record still names this engine.
func (e *Engine) ours(c volume.Configuration) bool {
	return c.Engine == e.opts.Engine && c.Epoch == e.record.Epoch
}

// storeFailed notes that the cluster store did not answer, and when to ask again.
func (e *Engine) storeFailed() {
	e.retryAt = e.now + e.opts.RetryDelay<<min(e.retries, 4)
	e.retries++
}

// retryStore asks the cluster store again for what is still unknown.
func (e *Engine) retryStore() {
	if e.now < e.retryAt {
		return
	}
	if e.phase == Claiming && e.claim.token == 0 {
		e.claim.token = e.lookUp()
		return
	}
	if c := e.change; c != nil && c.stage == proposing && c.token == 0 {
		c.token = e.lookUp()
	}
}

// failStopped answers with errors what has waited too long for the cluster store or for replicas, if the volume is
// set to on-no-quorum=io-error. What is under way stays ordered before later requests.
func (e *Engine) failStopped() {
	if !e.opts.FailStopped || e.phase != Serving || e.stopped() == "" {
		return
	}
	late := func(o *op) bool { return o.client && e.ran-o.ranAt >= e.opts.PingTimeout }
	for _, o := range e.active {
		if late(o) {
			e.reply(o, fault.Unavailable, nil)
		}
	}
	kept := e.queue[:0]
	for _, o := range e.queue {
		if late(o) {
			e.reply(o, fault.Unavailable, nil)
			e.release(o)
			continue
		}
		kept = append(kept, o)
	}
	e.queue = kept
}

// size is the volume's size in bytes.
func (e *Engine) size() uint64 { return e.record.Size }

// blocks is how many blocks the volume has.
func (e *Engine) blocks() uint64 { return (e.record.Size + volume.BlockSize - 1) / volume.BlockSize }

func (e *Engine) newID() uint64 {
	id := e.nextID
	e.nextID++
	return id
}

// Submit takes requests of clients.
func (e *Engine) Submit(requests []Request) {
	for _, q := range requests {
		o := &op{request: q, kind: q.Op, at: q.Range, client: true, ranAt: e.ran}
		switch {
		case e.phase == Ended || e.phase == Detaching:
			e.reply(o, fault.Shutdown, nil)
			e.release(o)
		case !e.valid(q):
			e.reply(o, fault.Invalid, nil)
			e.release(o)
		default:
			e.queue = append(e.queue, o)
		}
	}
	e.advance()
}

func (e *Engine) valid(q Request) bool {
	size := e.size()
	if e.phase == Claiming {
		size = e.claim.next.Size
	}
	switch q.Op {
	case replication.Sync:
		return true
	case replication.Write, replication.Read, replication.Zero, replication.Fetch:
		return q.Range.IsRequest(size)
	}
	return false
}
