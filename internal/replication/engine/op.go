package engine

import (
	"time"

	"samovar/internal/bitmap"
	"samovar/internal/fault"
	"samovar/internal/replication"
	"samovar/internal/volume"
)

// op is one request from its arrival to the moment when no replica works on it any more.
//
//	queued ──admit──> reserving ──every required replica has room──> running ──acknowledged as rule 1 says──> replied
//	                      └ no space: replied                            └ also by replicas that catch up: gone
type op struct {
	request Request
	kind    replication.Kind
	at      volume.Range
	client  bool // made by a client, who waits for a reply

	id      uint64 // 0 until it runs
	started time.Duration
	ranAt   time.Duration // engine-run time when it came
	running bool
	replied bool

	targets uint32 // members that it was sent to, or will be
	acked   uint32 // members that did it
	status  fault.Kind

	reserveID uint64 // while reserving
	reserving uint32 // members that have not answered

	reader   *member             // Read: who was asked
	data     replication.Payload // Read: in hand, waiting for the lease
	inHand   bool
	avoid    uint32         // Read: members that failed it
	covers   *bitmap.Bitmap // Sync: sectors acknowledged since the sync before it
	mark     uint64         // Sync: the completed watermark when it was sent
	source   *member        // Copy
	target   *member        // Copy
	settles  bool           // Copy: of doubtful ranges, not of catching up
	released bool           // Fetch: nobody needs the range to stay as it is any more
	tainted  bool           // Copy: the source's session was lost meanwhile; it may have restarted
	cancel   time.Duration  // Copy: when it was asked to give up; 0: not yet
}

// reads tells whether o only needs a range to stay as it is.
func (o *op) reads() bool { return o.kind == replication.Read || o.kind == replication.Fetch }

func (o *op) writes() bool { return o.kind == replication.Write || o.kind == replication.Zero }

// conflicts tells whether o must wait for p (rules 4 and 17). Copies read what no write may change meanwhile; reads
// of the source may go on beside them.
func (e *Engine) conflicts(o, p *op) bool {
	if o.kind == replication.Sync || p.kind == replication.Sync || !o.at.Overlaps(p.at) {
		return false
	}
	if o.kind == replication.Copy || p.kind == replication.Copy {
		if e.opts.Bugs.CopyUnordered {
			return false
		}
		return !o.reads() && !p.reads()
	}
	return !o.reads() || !p.reads()
}

// Release ends the hold of a Fetch request, by the caller's ID; held tells whether it lasted until now, so that
// what was compared meanwhile counts.
func (e *Engine) Release(id uint64) (held bool) {
	for _, o := range e.active {
		if o.client && o.kind == replication.Fetch && o.request.ID == id {
			o.released, held = true, true
		}
	}
	e.advance()
	return held
}

// admit starts queued requests in order, except those that must wait for one that is under way or before them.
func (e *Engine) admit() {
	if e.phase != Serving && e.phase != Detaching || len(e.queue) == 0 {
		return
	}
	kept := make([]*op, 0, len(e.queue))
	for i, o := range e.queue {
		if e.mustWait(o, kept) || !e.start(o) {
			kept = append(kept, e.queue[i])
		}
	}
	e.queue = kept
}

func (e *Engine) mustWait(o *op, before []*op) bool {
	switch {
	case o.reads() && e.inDoubt(o.at):
		return true
	case (o.writes() || o.kind == replication.Sync) && o.client && !e.settled:
		return true
	}
	for _, p := range e.active {
		if e.conflicts(o, p) {
			return true
		}
	}
	if o.settles {
		return false // writes that came first wait for the settlement themselves
	}
	for _, p := range before {
		if e.conflicts(o, p) {
			return true
		}
	}
	return false
}

// inDoubt tells whether a range may differ between in-sync replicas (rule 12).
func (e *Engine) inDoubt(g volume.Range) bool {
	from, to := replication.Blocks(g)
	for _, m := range e.members {
		if m.inSync && m.doubt.Any(from, to) {
			return true
		}
	}
	return false
}

// start begins an op; false leaves it queued.
func (e *Engine) start(o *op) bool {
	switch o.kind {
	case replication.Read:
		e.activate(o)
		e.ask(o)
	case replication.Fetch:
		e.activate(o)
		e.reply(o, fault.None, nil)
	case replication.Sync:
		e.startSync(o)
	case replication.Copy:
		return e.startCopy(o)
	default:
		e.active = append(e.active, o)
		e.reserve(o)
	}
	return true
}

// activate numbers an op and puts it at the end of the active list, which is in ID order.
func (e *Engine) activate(o *op) {
	o.id = e.newID()
	o.started, o.running = e.now, true
	if !o.client || o.kind == replication.Fetch {
		o.ranAt = e.ran
	}
	e.byID[o.id] = o
	e.active = append(e.active, o)
}

// required are the members that must do a write before it is acknowledged: the in-sync set, those whose removal is
// not yet durable everywhere, and one whose entry is being decided.
func (e *Engine) required() uint32 {
	bits := e.out
	for _, m := range e.members {
		if m.inSync || m == e.joiner && !e.opts.Bugs.JoinWithoutWriters {
			bits |= m.bit
		}
	}
	return bits
}

// reserve makes sure that no required replica can fail the write for lack of space (rule 7).
func (e *Engine) reserve(o *op) {
	need := e.required() &^ e.out
	if o.kind == replication.Zero && o.request.Punch {
		need = 0 // it gives space back
	}
	for _, m := range e.members {
		if m.bit&need == 0 || m.failing {
			continue
		}
		if m.up && m.charged+o.at.Length <= m.credit {
			continue
		}
		o.reserving |= m.bit
	}
	if o.reserving == 0 {
		e.run(o)
		return
	}
	o.reserveID = e.newID()
	e.byID[o.reserveID] = o
	for _, m := range e.members {
		if m.bit&o.reserving != 0 && !m.failing {
			e.send(m, replication.Message{Kind: replication.Reserve, ID: o.reserveID, Range: o.at})
		}
	}
}

// run sends a write to everybody who shall have it.
func (e *Engine) run(o *op) {
	if o.reserveID != 0 {
		delete(e.byID, o.reserveID)
		o.reserveID = 0
	}
	e.active = remove(e.active, o)
	e.activate(o)
	from, to := replication.Blocks(o.at)
	for _, m := range e.members {
		switch {
		case m.inSync || m == e.joiner:
			o.targets |= m.bit
		case m.catchUp == catchUpCopying && !m.need.Any(from, to):
			o.targets |= m.bit
		default:
			m.need.Add(from, to)
			continue
		}
		if !m.inSync {
			m.unsynced.Add(from, to)
		}
		m.charged += o.at.Length
		if m.up && !m.failing {
			e.sendWork(m, o)
		}
	}
	e.dirtyID = o.id
}

func (e *Engine) sendWork(m *member, o *op) {
	e.send(m, replication.Message{
		Kind: o.kind, ID: o.id, Range: o.at, FUA: o.request.FUA, Punch: o.request.Punch, Payload: o.request.Payload,
	})
}

// ask sends a read to a member that may answer it: the local one if possible.
func (e *Engine) ask(o *op) {
	best := e.bestReader(o.avoid)
	if best == nil {
		best = e.bestReader(0) // it failed this read before, and is the last one now: it answers or the client gets the error
	}
	o.reader = best
	if best != nil {
		e.send(best, replication.Message{Kind: replication.Read, ID: o.id, Range: o.at})
	}
}

// unreadable notes what a member that can be spared could not read.
func (e *Engine) unreadable(m *member, at volume.Range) {
	for _, o := range e.members {
		if o != m && o.inSync && !o.failing && !o.parting {
			m.unreadable.Add(replication.Blocks(at))
			return
		}
	}
}

func (e *Engine) bestReader(avoid uint32) (best *member) {
	for _, m := range e.members {
		if !m.usable() || avoid&m.bit != 0 {
			continue
		}
		slow := e.ran < m.readsAgain
		switch {
		case best == nil, !slow && e.ran < best.readsAgain, !slow && m.pool == e.opts.Local:
			best = m
		}
	}
	return best
}

// acked takes an Ack of m.
func (e *Engine) acked(m *member, msg replication.Message) {
	if msg.ID != 0 && e.settingAcked(m, msg) {
		return
	}
	o := e.byID[msg.ID]
	switch {
	case o == nil:
	case msg.ID == o.reserveID:
		e.reserved(o, m, msg.Status)
	case o.kind == replication.Read:
		e.readDone(o, m, msg)
	case o.kind == replication.Copy:
		if o.target == m {
			e.copyDone(o, msg.Status)
		}
	case o.targets&m.bit != 0 && o.acked&m.bit == 0:
		e.workDone(o, m, msg.Status)
	}
}

func (e *Engine) reserved(o *op, m *member, status fault.Kind) {
	if o.reserving&m.bit == 0 {
		return
	}
	if status == fault.NoSpace {
		// The same answer everywhere, and nothing was sent: copies stay equal.
		e.reply(o, fault.NoSpace, nil)
		e.drop(o)
		return
	}
	if status != fault.None && e.failMember(m, "it cannot reserve space: "+status.String(), false) {
		return
	}
	if status != fault.None {
		e.reply(o, fault.IO, nil)
		e.drop(o)
		return
	}
	o.reserving &^= m.bit
	if o.reserving == 0 {
		e.run(o)
	}
}

// workDone counts a replica's answer to a write, zero or sync.
func (e *Engine) workDone(o *op, m *member, status fault.Kind) {
	if status == fault.None || e.opts.Bugs.CountFailedAcks {
		o.acked |= m.bit
		return
	}
	switch {
	case !m.inSync && e.required()&m.bit == 0:
		e.joinerMissed(m, o)
		e.hangUp(m)
	case e.failMember(m, o.describe()+" failed there: "+status.String(), false):
	default:
		// The last member stays, and the client gets the error (rule 6).
		o.acked |= m.bit
		o.status = fault.IO // also for a full disk: NoSpace would promise that nothing was changed
		e.event("last-replica-failed", m, o.describe()+" failed on the last in-sync replica: "+status.String(), o.at.Length)
		if o.writes() {
			torn := &bitmap.Bitmap{}
			torn.Add(replication.Blocks(o.at))
			e.othersDiffer(m, torn)
		}
		if o.kind == replication.Sync {
			e.syncLost(m, o.covers)
		} else if o.request.FUA {
			lost := &bitmap.Bitmap{}
			addSectors(lost, o.at)
			e.syncLost(m, lost)
		}
	}
}

func (o *op) describe() string {
	switch o.kind {
	case replication.Sync:
		return "a sync"
	case replication.Read:
		return "a read"
	case replication.Zero:
		return "a trim or zero"
	}
	return "a write"
}

func addSectors(b *bitmap.Bitmap, g volume.Range) {
	b.Add(g.Offset/volume.SectorSize, g.End()/volume.SectorSize)
}

func (e *Engine) readDone(o *op, m *member, msg replication.Message) {
	if o.reader != m || o.inHand {
		return
	}
	if msg.Status == fault.None && msg.Range == o.at {
		o.data, o.inHand = msg.Payload, true
		return
	}
	o.avoid |= m.bit
	// What it cannot read it lacks: it is written there again before the member counts again.
	e.unreadable(m, o.at)
	if !e.failMember(m, "a read failed there: "+msg.Status.String(), false) {
		e.event("last-replica-failed", m, "a read failed on the last in-sync replica", o.at.Length)
		e.reply(o, fault.IO, nil)
		e.drop(o)
		return
	}
	e.ask(o)
}

// sessionLost: what m was asked for on its session will not be answered.
func (o *op) sessionLost(e *Engine, m *member) {
	switch {
	case o.kind == replication.Read:
		if o.reader == m && !o.inHand {
			o.reader = nil
		}
	case o.kind == replication.Copy:
		if o.target == m {
			o.acked, o.status = m.bit, fault.Aborted
		}
		o.tainted = o.tainted || o.source == m
	case o.targets&m.bit != 0 && o.acked&m.bit == 0 && e.required()&m.bit == 0:
		e.joinerMissed(m, o)
	}
}

// joinerMissed: m, which does not count yet, may lack o.
func (e *Engine) joinerMissed(m *member, o *op) {
	o.targets &^= m.bit
	if o.writes() {
		from, to := replication.Blocks(o.at)
		m.need.Add(from, to)
	}
}

// replay sends m again, in order, what it has not answered.
func (e *Engine) replay(m *member) {
	e.sendSettled(m)
	e.replayChange(m)
	for _, o := range e.active {
		switch {
		case o.reserving&m.bit != 0:
			e.send(m, replication.Message{Kind: replication.Reserve, ID: o.reserveID, Range: o.at})
		case o.running && o.targets&m.bit != 0 && o.acked&m.bit == 0 && (o.writes() || o.kind == replication.Sync):
			m.charged += o.at.Length
			e.sendWork(m, o)
		}
	}
}

// finish answers and ends what is done, and asks again for reads that nobody is working on.
func (e *Engine) finish() {
	required := e.required()
	if e.opts.Bugs.AckBeforeRecord {
		for _, m := range e.members {
			if m.failing {
				required &^= m.bit
			}
		}
	}
	leased, checked := false, false
	for i := 0; i < len(e.active); i++ {
		o := e.active[i]
		switch {
		case o.kind == replication.Read && o.inHand:
			if !checked {
				leased, checked = e.leased(), true
			}
			if leased {
				e.reply(o, fault.None, o.data)
			}
		case o.kind == replication.Read && o.reader == nil && !o.replied:
			e.ask(o)
		case o.kind == replication.Sync && o.targets&required == 0 && !o.replied:
			e.syncAnew(o)
			i--
			continue
		case o.running && (o.writes() || o.kind == replication.Sync):
			// A member whose removal is not yet durable on the others holds back even what was not sent to
			// it: the answer would rely on the removal (rule 2).
			if required&(o.targets|e.out)&^o.acked == 0 && o.acked != 0 {
				e.workReplied(o)
			}
		}
		if e.over(o) {
			e.drop(o)
			i--
		}
	}
}

// workReplied answers a write or sync that every required member did.
func (e *Engine) workReplied(o *op) {
	if o.replied {
		return
	}
	if o.kind == replication.Sync {
		e.syncDone(o)
		return
	}
	if o.status == fault.None {
		e.suspect.Remove(o.at.Offset/volume.SectorSize, o.at.End()/volume.SectorSize)
		if !o.request.FUA {
			addSectors(e.unsynced, o.at)
		} else if !e.suspect.Empty() {
			o.status = fault.IO // as a flush (rule 6)
		}
	}
	e.reply(o, o.status, nil)
}

// over tells whether no replica works on o any more.
func (e *Engine) over(o *op) bool {
	switch o.kind {
	case replication.Read:
		return o.replied
	case replication.Fetch:
		return o.released || e.ran-o.ranAt >= e.opts.CopyDeadline
	case replication.Copy:
		return o.acked != 0
	}
	return o.running && o.replied && o.targets&^o.acked&^e.gone() == 0
}

// gone are members that no longer count and to which nothing more is sent.
func (e *Engine) gone() uint32 {
	bits := uint32(0)
	for _, m := range e.members {
		if !m.inSync && m != e.joiner && e.out&m.bit == 0 && m.catchUp != catchUpCopying {
			bits |= m.bit
		}
	}
	return bits
}

// drop takes o out of the active list and moves the completed watermark.
func (e *Engine) drop(o *op) {
	delete(e.byID, o.id)
	if o.reserveID != 0 {
		delete(e.byID, o.reserveID)
	}
	e.active = remove(e.active, o)
	e.release(o)
	if o.kind == replication.Copy {
		e.copyOver(o)
	}
	e.moveCompleted()
}

func (e *Engine) moveCompleted() {
	upTo := e.nextID - 1
	for _, o := range e.active {
		if o.id != 0 && o.running && (o.writes() || o.kind == replication.Copy) {
			upTo = min(upTo, o.id-1)
		}
	}
	if e.settleFloor != 0 {
		// A settling copy is complete when its range is equal everywhere: until then its target must remember it.
		upTo = min(upTo, e.settleFloor-1)
	}
	e.completed = max(e.completed, upTo)
}

func remove(list []*op, o *op) []*op {
	for i, p := range list {
		if p == o {
			copy(list[i:], list[i+1:])
			list[len(list)-1] = nil
			return list[:len(list)-1]
		}
	}
	return list
}

// reply answers the client, once.
func (e *Engine) reply(o *op, status fault.Kind, data replication.Payload) {
	if o.replied {
		return
	}
	o.replied = true
	if o.client {
		e.begin()
		e.act.Completions = append(e.act.Completions, Completion{ID: o.request.ID, Status: status, Payload: data})
	}
}

func (e *Engine) release(o *op) {
	if o.request.Payload != nil {
		e.begin()
		e.act.Released = append(e.act.Released, o.request.Payload)
		o.request.Payload = nil
	}
}
