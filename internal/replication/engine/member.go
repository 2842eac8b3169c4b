package engine

import (
	"slices"
	"strconv"
	"time"

	"samovar/internal/bitmap"
	"samovar/internal/fault"
	"samovar/internal/replication"
	"samovar/internal/volume"
)

// member is one replica as the engine deals with it.
type member struct {
	pool   volume.PoolID
	bit    uint32
	inSync bool // by the confirmed record

	session   Session
	connected bool // session is open
	up        bool // and welcome
	dialing   bool
	redialAt  time.Duration
	failures  uint          // dials and sessions in a row that led nowhere
	greeted   time.Duration // when Hello was sent on this session
	pinged    time.Duration // when the last ping was sent

	fenced    bool          // confirmed this epoch at least once
	confirmed time.Duration // the latest sending time of a request that it answered under this epoch (rule 10)
	silence   time.Duration // engine-run time since it was last heard of
	knowledge *replication.Knowledge

	slow       time.Duration // how long it has been far behind the others
	readsAgain time.Duration // engine-run time before which others are preferred for reads

	failing bool // to be removed from the in-sync set
	soft    bool // only because it was silent: it may stay if it answers before the change is proposed
	parting bool // its removal is proposed, but it answers again: it takes part in writes until the outcome is known
	lost    bool // it lost acknowledged writes: it leaves as soon as it can
	cause   string
	refused string // why it cannot be used, for people

	asked           map[uint64]time.Duration // what it has not answered, and when (engine-run time) it was asked
	credit, charged uint64                   // bytes, see replication.Message.Credit

	doubt *bitmap.Bitmap // in-sync: blocks that may differ from the source's
	need  *bitmap.Bitmap // not in-sync: blocks that it lacks
	// unreadable: in-sync, blocks that it could not read and will lack once it has left
	unreadable bitmap.Bitmap
	full       bool // need cannot be proven from records

	catchUp   catchUpStage
	catchUpID uint64         // of the CatchUp message that is not yet acknowledged
	unsynced  *bitmap.Bitmap // blocks copied or written to a joiner since its last sync was started
	syncing   *bitmap.Bitmap // the same, covered by the sync under way; nil: none
	syncID    uint64
	syncMark  uint64
	lastSent  uint64 // the last write or copy that it was sent
	flushed   uint64 // a joiner's own watermark
	wantSync  bool
	started   bool // CatchUp was acknowledged in this epoch
	copying   int  // copies to it under way or queued
	cursor    uint64
	pauseTill time.Duration // no copy before
	copyFails uint
	settleID  uint64 // of the Settled message not yet acknowledged
	joinStage joinStage
	joinMark  uint64 // IDs below were given before writes needed it
	recordsID uint64 // of the last Records message not yet acknowledged
}

type catchUpStage uint8

const (
	catchUpNone    catchUpStage = iota
	catchUpSaving               // CatchUp sent, not yet durable there
	catchUpCopying              // blocks are being copied; writes to copied blocks are sent to it
)

// reset clears what belongs to a session.
func (m *member) reset() {
	m.connected, m.up, m.catchUp, m.catchUpID = false, false, catchUpNone, 0
	m.syncing, m.syncID, m.settleID, m.recordsID, m.copying = nil, 0, 0, 0, 0
	m.credit, m.charged, m.asked = 0, 0, map[uint64]time.Duration{}
	if m.doubt == nil {
		m.doubt = &bitmap.Bitmap{}
	}
	if m.unsynced == nil {
		m.unsynced = &bitmap.Bitmap{}
	}
}

func (e *Engine) member(pool volume.PoolID) *member {
	for _, m := range e.members {
		if m.pool == pool {
			return m
		}
	}
	return nil
}

func (e *Engine) dial(m *member) {
	if !m.dialing && !m.connected {
		m.dialing = true
		e.begin()
		e.act.Dials = append(e.act.Dials, m.pool)
	}
}

// Connected tells of a session to the replica on pool.
func (e *Engine) Connected(pool volume.PoolID, s Session) {
	m := e.member(pool)
	if m == nil || e.phase == Ended || e.phase == Claiming || m.connected {
		e.begin()
		e.act.Hangups = append(e.act.Hangups, Hangup{Pool: pool, Session: s})
		return
	}
	m.dialing, m.connected, m.session, m.greeted = false, true, s, e.now
	record := e.record.Clone()
	e.send(m, replication.Message{
		Kind: replication.Hello, Fence: e.record.Fence(), Configuration: &record, Stamp: e.now,
		Full: e.phase < Settling,
	})
	e.advance()
}

// DialFailed tells that the replica on pool could not be reached.
func (e *Engine) DialFailed(pool volume.PoolID) {
	if m := e.member(pool); m != nil && m.dialing {
		m.dialing = false
		e.redialLater(m)
	}
	e.advance()
}

// Disconnected tells that a session is gone.
func (e *Engine) Disconnected(pool volume.PoolID, s Session) {
	if m := e.member(pool); m != nil && m.connected && m.session == s {
		e.sessionLost(m)
	}
	e.advance()
}

func (e *Engine) redialLater(m *member) {
	most := uint(7)
	if m.inSync {
		most = 4 // I/O may wait for it
	}
	m.redialAt = e.now + e.opts.RetryDelay<<min(m.failures, most)
	m.failures++
}

// hangUp closes m's session, if there is one.
func (e *Engine) hangUp(m *member) {
	if m.connected {
		e.begin()
		e.act.Hangups = append(e.act.Hangups, Hangup{Pool: m.pool, Session: m.session})
		e.sessionLost(m)
	}
}

// sessionLost forgets what was under way on m's session. Requests that need m are sent again on its next session;
// others count as missed.
func (e *Engine) sessionLost(m *member) {
	if m.syncing != nil {
		m.unsynced.Union(m.syncing)
	}
	m.reset()
	e.redialLater(m)
	if e.joiner == m && (e.change == nil || e.change.join != m || e.change.stage == preparing) {
		e.abandonJoin("its session was lost")
	}
	for _, o := range e.active {
		o.sessionLost(e, m)
	}
	kept := e.queue[:0]
	for _, o := range e.queue {
		if o.kind != replication.Copy || o.target != m {
			kept = append(kept, o)
		}
	}
	e.queue = kept
}

// send sends on m's session, with the watermarks that m may rely on.
func (e *Engine) send(m *member, msg replication.Message) {
	if !m.connected {
		return
	}
	e.begin()
	msg.Pool, msg.Volume = m.pool, e.record.Volume
	msg.Completed, msg.Flushed = e.completed, e.flushed
	if !m.inSync {
		// What only it has synced may be missing elsewhere, and its log must still name it.
		msg.Flushed = min(m.flushed, e.flushed)
	}
	switch msg.Kind {
	case replication.Write, replication.Zero, replication.Copy:
		m.lastSent = max(m.lastSent, msg.ID)
	}
	if msg.ID != 0 && msg.Kind != replication.Copy && msg.Kind != replication.Cancel {
		m.asked[msg.ID] = e.ran // copies have a deadline of their own
	}
	e.act.Sends = append(e.act.Sends, Send{Pool: m.pool, Session: m.session, Message: msg})
}

// Receive takes a message of the replica on pool.
func (e *Engine) Receive(pool volume.PoolID, s Session, msg replication.Message) {
	m := e.member(pool)
	if m == nil || e.phase == Ended || !m.connected || m.session != s || msg.Volume != e.record.Volume || msg.Pool != pool {
		return // of an older session, or not of this replica (rule 1)
	}
	if m.up {
		m.silence = 0 // a refusal is no sign of life: who only refuses is dropped as who is silent
	}
	switch {
	case msg.Kind == replication.Welcome && !m.up && msg.Fence == e.record.Fence() && msg.Knowledge != nil:
		e.welcomed(m, msg)
	case msg.Kind == replication.Refuse:
		e.refusedBy(m, msg)
	case !m.up:
	case msg.Kind == replication.Ack:
		m.credit = msg.Credit
		delete(m.asked, msg.ID)
		e.acked(m, msg)
	case msg.Kind == replication.Pong:
		m.credit = msg.Credit
		m.confirmed = max(m.confirmed, min(msg.Stamp, m.pinged))
	case msg.Kind == replication.NeedSync:
		e.wantSync = true
		m.wantSync = !m.inSync
	}
	e.advance()
}

// refusedBy handles a replica that does not take this engine.
func (e *Engine) refusedBy(m *member, msg replication.Message) {
	news := m.refused != msg.Text
	m.refused = msg.Text
	higher := msg.Status == fault.Fenced && msg.Fence.Epoch >= e.record.Epoch && msg.Fence != e.record.Fence()
	e.hangUp(m)
	switch {
	case higher && e.phase < Settling:
		// Either a newer engine owns the volume, or the cluster store was restored from an old copy. The claim
		// tells: it fails unless the record still names this engine.
		if msg.Fence.Epoch > maxEpoch {
			e.end(fault.Corrupt, "the replica on pool "+m.pool.String()+" claims an impossible epoch")
			return
		}
		e.claimAbove(e.record, msg.Fence.Epoch)
	case higher:
		e.end(fault.Fenced, "a newer engine has fenced the replica on pool "+m.pool.String())
	case msg.Status != fault.Unavailable && news:
		e.event("replica-refused", m, msg.Text, 0)
	}
}

// welcomed takes a replica's Welcome.
func (e *Engine) welcomed(m *member, msg replication.Message) {
	k := msg.Knowledge
	before := m.knowledge
	if why := e.malformed(k); why != "" {
		e.setAside(m, why)
		return
	}
	standing := e.standing(k)
	if c := e.change; m == e.joiner && e.counts(m) && k.Prepared == c.next.Generation && k.PreparedID == c.next.GenerationID {
		standing = fault.None // it was let in, or is about to be
	}
	if e.counts(m) {
		switch {
		case standing != fault.None && e.phase >= Settling:
			if !e.failMember(m, "its generation is not the record's: its disk or machine was rolled back", false) {
				e.end(fault.Stale, "the last in-sync replica was rolled back while the volume was attached; an operator has to decide (docs/operations.md)")
			}
			return
		case standing == fault.Stale:
			e.end(fault.Stale, "the replica on pool "+m.pool.String()+" knows generation "+strconv.FormatUint(uint64(k.Accepted.Generation), 10)+
				", the record has "+strconv.FormatUint(uint64(e.record.Generation), 10)+": the cluster store was restored from an old copy; an operator has to decide (docs/operations.md)")
			return
		case standing == fault.Unavailable:
			m.inSyncBehind(e)
			return
		}
	} else if k.Accepted.Generation > e.record.Generation || k.Accepted.Generation == e.record.Generation && standing == fault.Stale {
		if e.phase < Settling {
			e.end(fault.Stale, "the replica on pool "+m.pool.String()+" is no member but knows a higher generation: an operator has to decide (docs/operations.md)")
			return
		}
		e.setAside(m, "it knows a higher generation than the record: another history")
		return
	}
	m.up, m.silence = true, 0
	if e.counts(m) {
		m.failures = 0
	}
	m.credit, m.charged = msg.Credit, 0
	m.confirmed = max(m.confirmed, m.greeted)
	if !m.fenced {
		m.fenced = true
		e.lastFence = e.now
	}
	if before != nil && k.Records == nil {
		k.Records = before.Records
	}
	m.knowledge = k
	if e.counts(m) {
		m.refused = ""
		e.returned(m, before)
	}
}

// inSyncBehind: the record names m in-sync, but its own generation is older: it was rolled back (rule 14).
func (m *member) inSyncBehind(e *Engine) {
	m.fenced = true // it has raised our fence: no older engine reads from it under a lease
	m.failing, m.soft, m.cause = true, false, "its generation is behind the record: its disk or machine was rolled back"
	e.event("replica-behind", m, m.cause, 0)
	for _, o := range e.members {
		if o.inSync && !o.failing {
			e.hangUp(m)
			return
		}
	}
	e.end(fault.Stale, "every in-sync replica that was reached is behind the record; an operator has to decide (docs/operations.md)")
}

// malformed says what in a Welcome cannot be true of this volume (rule 26), or nothing.
func (e *Engine) malformed(k *replication.Knowledge) string {
	if k.Size != e.size() {
		return "its volume has another size"
	}
	beyond := func(b *bitmap.Bitmap) bool {
		_, _, ok := b.Next(e.blocks(), 1)
		return ok
	}
	bad := beyond(k.Missing)
	for _, rec := range k.Records {
		bad = bad || beyond(rec.Blocks)
	}
	for _, g := range k.Doubt {
		bad = bad || g.Offset >= e.size() || g.Length > e.size()-g.Offset
	}
	if bad {
		return "it names ranges beyond the end of the volume"
	}
	return ""
}

// setAside drops a session that is of no use and says why.
func (e *Engine) setAside(m *member, why string) {
	if m.refused != why {
		e.event("replica-refused", m, why, 0)
	}
	m.refused = why
	e.hangUp(m)
}

// returned handles a new session of an in-sync member in this epoch (rule 11).
func (e *Engine) returned(m *member, before *replication.Knowledge) {
	if before == nil || e.phase < Settling {
		return
	}
	restarted := m.knowledge.Incarnation != before.Incarnation && !e.restartHarmless(m) ||
		m.knowledge.Broken && !before.Broken
	if m.lost || restarted && !e.opts.Bugs.IgnoreIncarnation {
		if e.failMember(m, "it restarted and lost what it had not synced", false) {
			m.lost = true
			return
		}
		why := "the last in-sync replica failed a sync"
		if m.knowledge.Incarnation != before.Incarnation {
			why = "the last in-sync replica restarted"
		}
		e.lastRestarted(m, why)
	} else if m.knowledge.Broken {
		e.stillBroken(m)
	}
	// Settled, a member that differs from the last one, whose writes failed, leaves: it comes back by copying.
	same := !e.settled || m.need.Empty()
	if m.failing && m.soft && same && (e.change == nil || e.change.stage == preparing) {
		m.failing, e.change = false, nil
		m.doubt.Union(m.need)
		m.need.Clear()
		if !e.settled {
			e.sourceLost() // it may be the better source
		}
		e.event("replica-back", m, "answers again before it was removed", 0)
	}
	if c := e.change; m.failing && m.soft && m.need.Empty() && c != nil && c.stage == proposing {
		// Writes need old and new members alike until the outcome is known (rule 19), so they can go on with it.
		// Nothing is read from it: another engine may not count it any more.
		m.failing, m.parting = false, slices.Contains(c.removes, m)
		e.event("replica-back", m, "answers again while a removal is being decided", 0)
	}
	if !m.failing {
		e.replay(m)
	}
}

// restartHarmless: nothing was acknowledged by m that it had not synced. Its empty log says so, and so does what this
// engine knows: a log that is empty although there was something to name would be a rolled-back disk's.
func (e *Engine) restartHarmless(m *member) bool {
	k := m.knowledge
	if k.Broken || len(k.Doubt) > 0 || !e.settled || !e.unsynced.Empty() {
		return false
	}
	for _, o := range e.active {
		if o.writes() && o.acked&m.bit != 0 {
			return false
		}
	}
	return true
}

// stillBroken: a member whose doubt is being settled comes back. Its log may name more than before, since a sync may
// have failed there unheard: all of it is in doubt again.
func (e *Engine) stillBroken(m *member) {
	doubt := &bitmap.Bitmap{}
	addRanges(doubt, m.knowledge.Doubt)
	if doubt.Empty() {
		return
	}
	e.doubtAgain(doubt)
	for _, o := range e.active {
		o.acked &^= m.bit
	}
	for _, o := range e.members {
		switch {
		case !o.inSync:
			o.need.Union(doubt)
		case o != e.source || o.knowledge != nil && o.knowledge.Broken:
			o.doubt.Union(doubt)
		}
	}
}

// lastRestarted: the last in-sync replica may have lost acknowledged writes. It stays (rule 6); syncs fail until
// those writes were repeated.
func (e *Engine) lastRestarted(m *member, why string) {
	e.suspect.Union(e.unsynced)
	for _, o := range e.active {
		if o.kind == replication.Sync {
			e.suspect.Union(o.covers)
		}
	}
	doubt := &bitmap.Bitmap{}
	addRanges(doubt, m.knowledge.Doubt)
	e.unsettle(m, doubt)
	for _, o := range e.active {
		o.acked &^= m.bit // what the old incarnation did counts no more
		if o.reader == m {
			o.reader, o.data, o.inHand = nil, nil, false
		}
	}
	e.event("unflushed-lost", m, why+": flushes fail until what was not flushed is rewritten, or the volume is attached anew",
		e.suspect.Count()*volume.SectorSize)
}

// failMember marks an in-sync member for removal, unless it is the last: the set never becomes empty (rule 6).
func (e *Engine) failMember(m *member, cause string, soft bool) (removing bool) {
	if m.failing {
		m.soft = m.soft && soft
		return true
	}
	others := false
	for _, o := range e.members {
		others = others || o != m && o.inSync && !o.failing && !o.parting
	}
	if m.inSync && !others {
		return false
	}
	if !m.inSync {
		if m == e.joiner {
			m.lost = m.lost || e.counts(m) && !soft // it leaves again as soon as its entry stands
			e.abandonJoin(cause)
		}
		e.hangUp(m)
		return true
	}
	m.failing, m.parting, m.soft, m.cause = true, false, soft, cause
	e.event("replica-failing", m, cause, 0)
	if !e.settled {
		for _, o := range e.members {
			if o.inSync {
				m.need.Union(o.doubt)
			}
		}
	}
	if e.source == m {
		e.sourceLost()
	}
	e.hangUp(m)
	return true
}

// leased tells whether every in-sync replica has confirmed this epoch within the lease (rule 10). Members that the
// record no longer names, but whose removal is not yet durable, do not count: no other engine can use them.
func (e *Engine) leased() bool {
	for _, m := range e.members {
		if m.inSync && (!m.fenced || e.now-m.confirmed >= e.opts.Lease) {
			return false
		}
	}
	return true
}
