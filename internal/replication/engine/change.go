package engine

import (
	"slices"

	"samovar/internal/fault"
	"samovar/internal/replication"
	"samovar/internal/volume"
)

// change is one change of the in-sync set on its way. From the proposal until its outcome is known it cannot be
// taken back: the same record is proposed until it stands or another one does.
//
//	preparing ──every member of the new set has it durably──> proposing ──applied──> accepting ──durable──> done
type change struct {
	stage   changeStage
	next    volume.Configuration
	removes []*member
	join    *member
	ids     map[uint64]*member // setting messages that are not yet acknowledged
	todo    uint32             // members that have not acknowledged
	token   uint64             // of the proposal or look under way; 0: none
}

type changeStage uint8

const (
	preparing changeStage = iota
	proposing
	accepting
)

// advanceChange starts the next change when one is needed, and starts a change anew when a member of the new set
// fails before or after, but never during, its proposal.
func (e *Engine) advanceChange() {
	if c := e.change; c != nil {
		if c.stage != proposing && e.outdated(c) {
			e.change = nil
		} else {
			return
		}
	}
	next := e.record.Clone()
	c := &change{ids: map[uint64]*member{}}
	members := next.Groups[0].Members
	for i, m := range e.members {
		if m.inSync && m.failing {
			c.removes = append(c.removes, m)
			members[i] = volume.Member{Pool: m.pool, Last: e.record.Generation, LastID: e.record.GenerationID}
		}
	}
	if m := e.joiner; m != nil && e.joinReady(m) && len(c.removes) == 0 {
		// Never both at once: a joiner knows nothing of what the one that leaves is missing.
		c.join = m
		members[slices.Index(e.members, m)] = volume.Member{Pool: m.pool, InSync: true}
	}
	if len(c.removes) == 0 && c.join == nil {
		if e.out != 0 {
			e.acceptOnly() // the last change happened, but was not yet durable everywhere
		}
		return
	}
	next.Generation++
	next.GenerationID = e.opts.NewGeneration()
	c.next = next
	e.change = c
	for _, m := range e.setOf(next) {
		c.todo |= m.bit
	}
	e.replayAll()
}

// outdated tells whether the members of a change are no longer those that it was made for.
func (e *Engine) outdated(c *change) bool {
	for _, m := range e.setOf(c.next) {
		if m.failing {
			return true
		}
	}
	if c.stage == preparing {
		for _, m := range c.removes {
			if !m.failing {
				return true
			}
		}
		return c.join != nil && (e.joiner != c.join || !e.joinReady(c.join))
	}
	return false
}

// setOf lists the members that a record names in-sync.
func (e *Engine) setOf(c volume.Configuration) []*member {
	var out []*member
	for i, rm := range c.Groups[0].Members {
		if rm.InSync {
			out = append(out, e.members[i])
		}
	}
	return out
}

// acceptOnly makes the record as it stands durable on every in-sync member.
func (e *Engine) acceptOnly() {
	c := &change{stage: accepting, next: e.record.Clone(), ids: map[uint64]*member{}}
	e.change = c
	for _, m := range e.setOf(c.next) {
		c.todo |= m.bit
	}
	e.replayAll()
}

func (e *Engine) replayAll() {
	for _, m := range e.members {
		if m.up && !m.failing {
			e.replayChange(m)
		}
	}
}

// replayChange sends m what it has not acknowledged of the change.
func (e *Engine) replayChange(m *member) {
	c := e.change
	if c == nil || c.todo&m.bit == 0 || c.stage == proposing {
		return
	}
	id := e.newID()
	c.ids[id] = m
	record := e.record.Clone()
	msg := replication.Message{Kind: replication.Accept, ID: id, Configuration: &record}
	if c.stage == preparing {
		msg.Kind, msg.Generation, msg.GenerationID = replication.Prepare, c.next.Generation, c.next.GenerationID
	}
	e.send(m, msg)
}

// settingAcked takes the acknowledgement of a message that changes settings, and tells whether it was one.
func (e *Engine) settingAcked(m *member, msg replication.Message) bool {
	switch msg.ID {
	case m.catchUpID:
		e.catchUpSaved(m, msg.Status)
		return true
	case m.syncID:
		e.joinerSynced(m, msg.Status)
		return true
	case m.settleID:
		m.settleID = 0
		return true
	case m.recordsID:
		m.recordsID = 0
		if msg.Status != fault.None {
			e.hangUp(m)
		}
		return true
	}
	c := e.change
	if c == nil || c.ids[msg.ID] != m {
		return false
	}
	delete(c.ids, msg.ID)
	if msg.Status != fault.None {
		if !e.failMember(m, "it cannot save a change of the in-sync set: "+msg.Status.String(), false) {
			e.hangUp(m) // the last one: again, on a new session
		}
		return true
	}
	c.todo &^= m.bit
	if c.todo != 0 {
		return true
	}
	if c.stage == preparing {
		c.stage = proposing
		c.token = e.propose(c.next)
	} else if c.stage == accepting {
		e.changeDone(c)
	}
	return true
}

func (e *Engine) changeProposed(o Outcome, current volume.Configuration) {
	switch {
	case o == Unknown:
		e.storeFailed()
	case o == Applied:
		e.changeApplied(current)
	default:
		e.changeRead(current)
	}
}

func (e *Engine) changeLooked(status fault.Kind, current volume.Configuration) {
	switch status {
	case fault.None:
		e.changeRead(current)
	case fault.NotFound:
		e.end(fault.NotFound, "the volume's record is gone")
	default:
		e.storeFailed()
	}
}

// changeRead compares the record as it stands with the change that was proposed.
func (e *Engine) changeRead(current volume.Configuration) {
	c := e.change
	switch {
	case !e.ours(current):
		e.end(fault.Fenced, "the volume's record names another engine, on "+current.Holder)
	case current.GenerationID == c.next.GenerationID:
		e.changeApplied(current)
	case current.GenerationID != e.record.GenerationID:
		e.end(fault.Stale, "the volume's record was changed by somebody else while it was attached")
	default:
		// Ours, and not changed by this proposal: somebody edited what may be edited beside us, or the proposal
		// has not arrived. Proposed again on what stands; only one can count.
		e.record.Revision, e.record.Name = current.Revision, current.Name
		c.next.Revision, c.next.Name = current.Revision, current.Name
		c.token = e.propose(c.next)
	}
}

// changeApplied: the record has changed. It counts for writes once it is durable on every member (rule 2).
func (e *Engine) changeApplied(current volume.Configuration) {
	c := e.change
	e.retries = 0
	e.record = current.Clone()
	for _, m := range c.removes {
		m.inSync, m.parting = false, false
		e.out |= m.bit
		m.need.Union(m.doubt)
		m.need.Union(&m.unreadable)
		m.full = false
		m.doubt.Clear()
		m.unsynced.Clear()
		m.catchUp, m.started, m.flushed = catchUpNone, false, 0
		e.event("replica-left", m, m.cause, 0)
	}
	if m := c.join; m != nil {
		m.inSync = true
		m.doubt.Clear()
		if e.joiner == m {
			e.joiner = nil
		}
		m.catchUp, m.joinStage, m.cause, m.failures = catchUpNone, joinNone, "", 0
		e.event("replica-joined", m, "in-sync again", 0)
		if !m.need.Empty() || m.lost {
			e.failMember(m, "it failed, or the others changed, while it was joining", false)
		}
	}
	c.stage, c.removes, c.join = accepting, nil, nil
	c.next = e.record.Clone()
	c.ids = map[uint64]*member{}
	c.todo = 0
	for _, m := range e.setOf(c.next) {
		c.todo |= m.bit
	}
	e.replayAll()
}

// changeDone: every member of the set has the record durably. Members that left no longer hold anything back.
func (e *Engine) changeDone(c *change) {
	e.change = nil
	for _, m := range e.members {
		if e.out&m.bit == 0 {
			continue
		}
		e.out &^= m.bit
		m.failing, m.soft, m.lost = false, false, false
		busy := false
		for _, o := range append([]*op(nil), e.active...) {
			busy = busy || m.up && o.pendingOn(m)
			if o.targets&m.bit != 0 && o.acked&m.bit == 0 {
				e.joinerMissed(m, o)
			}
			e.reserveWithout(o, m)
		}
		if !m.unreadable.Empty() {
			// The change records of the others know only of what was written.
			m.unreadable.Clear()
			for _, s := range e.members {
				if s.usable() {
					e.sendRecord(s, m)
				}
			}
		}
		if busy {
			e.hangUp(m) // it took part until now: what it still writes ends before its next session begins (rule 8)
		}
	}
}

// reserveWithout: o no longer waits for m's word on space.
func (e *Engine) reserveWithout(o *op, m *member) {
	if o.reserving&m.bit != 0 {
		o.reserving &^= m.bit
		if o.reserving == 0 {
			e.run(o)
		}
	}
}
