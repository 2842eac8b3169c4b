package engine

import (
	"samovar/internal/fault"
	"samovar/internal/replication"
	"samovar/internal/volume"
)

// joinStage is how far a replica that lacks nothing any more has come on its way into the in-sync set (rule 19).
//
//	none ──lacks nothing: writes now need it──> draining ──older writes are done there──> syncing ──> ready
type joinStage uint8

const (
	joinNone joinStage = iota
	joinDraining
	joinSyncing
	joinReady
)

func (e *Engine) joinReady(m *member) bool { return m.joinStage == joinReady }

// advanceJoin moves one replica at a time into the set.
func (e *Engine) advanceJoin() {
	if e.phase != Serving || !e.settled {
		return
	}
	m := e.joiner
	if m == nil {
		if m = e.nextJoiner(); m == nil {
			return
		}
		e.joiner = m
		m.joinStage, m.joinMark = joinDraining, e.nextID
	}
	if !m.need.Empty() && !e.counts(m) {
		e.abandonJoin("it lacks something again")
		return
	}
	if m.joinStage == joinDraining && m.syncID == 0 && e.drained(m) {
		m.joinStage = joinSyncing
		e.sendRecordsTo(m)
		if e.opts.Bugs.JoinWithoutSync {
			m.recordsID = 0
			m.joinStage = joinReady
		} else {
			e.syncJoiner(m)
		}
	}
	if m.joinStage == joinSyncing && m.syncID == 0 && m.recordsID == 0 {
		m.joinStage = joinReady
		e.advanceChange()
	}
}

func (e *Engine) nextJoiner() *member {
	if e.change != nil || e.out != 0 || e.anyFailing() {
		return nil
	}
	for _, m := range e.members {
		if m.catchUp == catchUpCopying && m.up && m.need.Empty() && m.copying == 0 && m.syncID == 0 && m.catchUpID == 0 {
			return m
		}
	}
	return nil
}

// drained tells whether every write begun before m became required is done there.
func (e *Engine) drained(m *member) bool {
	if e.opts.Bugs.JoinWithoutWriters {
		return true
	}
	for _, o := range e.active {
		if o.running && o.writes() && o.id < m.joinMark && o.acked&m.bit == 0 {
			return false
		}
	}
	return true
}

// sendRecordsTo gives a joiner the records of all absent replicas before it joins (rule 16). Replies are in order:
// the last one stands for all.
func (e *Engine) sendRecordsTo(m *member) {
	m.recordsID = 0
	for _, y := range e.members {
		if y != m && !y.inSync {
			m.recordsID = e.sendRecord(m, y)
		}
	}
}

// abandonJoin takes a joiner back out of what writes need, unless its entry may already stand in the record.
func (e *Engine) abandonJoin(why string) {
	m := e.joiner
	if m == nil {
		return
	}
	if c := e.change; c != nil && c.join == m {
		if c.stage == proposing {
			return
		}
		e.change = nil
	}
	e.joiner, m.joinStage, m.recordsID = nil, joinNone, 0
	e.event("join-abandoned", m, why, 0)
	for _, o := range append([]*op(nil), e.active...) {
		e.reserveWithout(o, m)
		if o.kind == replication.Sync {
			o.targets &^= m.bit
		}
	}
}

// counts tells whether m is in-sync or may be: its entry has been proposed.
func (e *Engine) counts(m *member) bool {
	return m.inSync || m == e.joiner && e.change != nil && e.change.join == m && e.change.stage == proposing
}

// advanceDetach drains, syncs, and gives the record back.
func (e *Engine) advanceDetach() {
	if e.phase != Detaching || e.change != nil || e.out != 0 || len(e.queue) > 0 || len(e.active) > 0 || !e.settled {
		return
	}
	switch {
	case e.parting == nil:
		e.parting = e.internalSync()
	case !e.parting.replied:
	case e.claim.token == 0 && e.now >= e.retryAt:
		for _, m := range e.members {
			if m.up {
				e.ping(m)
			}
		}
		next := e.record.Clone()
		next.Engine, next.Holder, next.Mode = volume.EngineID{}, "", ""
		e.claim.next = next
		e.claim.token = e.propose(next)
	}
}

// parted takes the answer to giving the record back.
func (e *Engine) parted(o Outcome, current volume.Configuration) {
	switch {
	case o == Unknown:
		e.storeFailed()
	case current.Engine != e.opts.Engine && (e.parting.status != fault.None || !e.suspect.Empty()):
		e.end(fault.IO, "detached, but the last in-sync replica failed a sync: what was not flushed may be lost")
	case current.Engine != e.opts.Engine:
		e.end(fault.None, "detached")
	case current.Epoch != e.record.Epoch || current.GenerationID != e.record.GenerationID:
		e.end(fault.Stale, "the volume's record was changed by somebody else, or restored from a copy, while it was attached")
	default:
		e.record.Revision, e.record.Name = current.Revision, current.Name // changed beside us, still ours: again
	}
}

// Detach drains, syncs, clears the engine in the record and ends.
func (e *Engine) Detach() {
	switch e.phase {
	case Ended, Detaching:
		return
	case Serving:
	default:
		e.end(fault.Aborted, "given up before it was attached")
		return
	}
	e.phase, e.since = Detaching, 0
	e.abandonJoin("the volume is being detached")
	kept := e.queue[:0]
	for _, o := range e.queue {
		if o.kind == replication.Copy && !o.settles {
			o.target.copying--
			continue
		}
		kept = append(kept, o)
	}
	e.queue = kept
	e.advance()
}
