package engine

import (
	"samovar/internal/bitmap"
	"samovar/internal/fault"
	"samovar/internal/replication"
)

// startSync sends a sync to every required member. All writes acknowledged before it were done by each of them, so
// each makes them durable (rule 5).
func (e *Engine) startSync(o *op) {
	o.covers, e.unsynced = e.unsynced, &bitmap.Bitmap{}
	o.mark = e.completed
	e.lastSync = e.now
	e.activate(o)
	o.targets = e.required() &^ e.out
	for _, m := range e.members {
		if o.targets&m.bit != 0 && m.up && !m.failing {
			e.sendWork(m, o)
		}
	}
}

// syncAnew: everybody whom a sync was sent to has left. It starts again with those who are there now.
func (e *Engine) syncAnew(o *op) {
	delete(e.byID, o.id)
	e.active = remove(e.active, o)
	e.unsynced.Union(o.covers)
	o.id, o.running, o.targets, o.acked, o.status = 0, false, 0, 0, fault.None
	e.queue = append([]*op{o}, e.queue...)
}

// syncDone: every required member is durable up to the mark, or the last one failed.
func (e *Engine) syncDone(o *op) {
	if o.status == fault.None && o.id >= e.distrust {
		e.flushed = max(e.flushed, o.mark)
	}
	if !o.client {
		e.syncs--
	}
	status := o.status
	if status == fault.None && !e.suspect.Empty() {
		status = fault.IO // what the last member may have lost was not rewritten yet (rule 6)
	}
	e.reply(o, status, nil)
	if e.settling == o {
		e.settling = nil
		switch {
		case o.status != fault.None:
			e.settlementFailed()
		case e.doubtful() == 0 && o.id >= e.distrust:
			e.announceSettled()
		}
	}
	for _, m := range e.members {
		if m.up && !o.client {
			e.ping(m) // replicas that wait for room in their log wait for these watermarks
		}
	}
}

// internalSync starts a sync of the engine's own.
func (e *Engine) internalSync() *op {
	o := &op{kind: replication.Sync}
	o.request.Op = replication.Sync
	e.syncs++
	e.startSync(o)
	return o
}

// keepSynced syncs when a replica's log is filling, and after a while anyway, so that little is in doubt after a
// crash and an idle volume becomes clean.
func (e *Engine) keepSynced() {
	if e.syncs > 0 {
		return
	}
	if e.wantSync && min(e.completed, e.dirtyID) > e.flushed || e.phase == Serving && e.settled && e.flushed < e.completed && e.dirtySinceSync() && e.now-e.lastSync >= e.opts.SyncInterval {
		e.wantSync = false
		e.internalSync()
	}
}

// dirtySinceSync tells whether anything was written that no sync covered.
func (e *Engine) dirtySinceSync() bool { return e.dirtyID > e.flushed }

// settle ends the doubt of older epochs: once all doubtful ranges are copied, a sync makes the copies durable, then
// every replica may forget (rule 13).
func (e *Engine) settle() {
	if e.settled || e.doubtful() > 0 || e.settling != nil || e.now < e.settleAt {
		return
	}
	for _, o := range e.active {
		if o.kind == replication.Copy {
			return
		}
	}
	for _, m := range e.members {
		if e.counts(m) && !m.need.Empty() {
			return // it differs, and until its removal stands another engine may count it
		}
	}
	e.settling = e.internalSync()
}

// settlementFailed: the last in-sync member could not make settled ranges durable. They are rewritten before the next
// sync may count; whoever waits gets the error.
func (e *Engine) settlementFailed() {
	e.settleAt = e.now + e.opts.RetryDelay<<4
	if usable := e.usableMembers(); len(usable) == 1 {
		e.unsettle(usable[0], &bitmap.Bitmap{})
	}
	kept := e.queue[:0]
	for _, o := range e.queue {
		if o.client && o.kind != replication.Read {
			e.reply(o, fault.IO, nil)
			e.release(o)
			continue
		}
		kept = append(kept, o)
	}
	e.queue = kept
}

func (e *Engine) announceSettled() {
	e.settled, e.oldDoubt, e.settleFloor = true, nil, 0
	e.moveCompleted()
	for _, m := range e.members {
		if m.inSync && m.knowledge != nil {
			m.knowledge.Broken = false
		}
		e.sendSettled(m)
	}
}

func (e *Engine) sendSettled(m *member) {
	if e.settled && m.inSync && m.up && !m.failing {
		m.settleID = e.newID()
		e.send(m, replication.Message{Kind: replication.Settled, ID: m.settleID})
	}
}

// syncJoiner syncs a replica that catches up: what it then has need not be copied again after a crash.
func (e *Engine) syncJoiner(m *member) {
	m.syncing, m.unsynced, m.wantSync = m.unsynced, &bitmap.Bitmap{}, false
	m.syncID = e.newID()
	m.syncMark = e.joinerMark(m)
	if m.syncMark == m.lastSent {
		m.syncMark = m.syncID - 1 // everything so far
	}
	for _, o := range e.active {
		if o.pendingOn(m) {
			// Not done yet, so perhaps not covered by this sync.
			from, to := replication.Blocks(o.at)
			m.unsynced.Add(from, to)
		}
	}
	e.send(m, replication.Message{Kind: replication.Sync, ID: m.syncID})
}

// joinerMark is the highest ID up to which m has done everything that it was sent.
func (e *Engine) joinerMark(m *member) uint64 {
	mark := m.lastSent
	for _, o := range e.active {
		if o.pendingOn(m) {
			mark = min(mark, o.id-1)
		}
	}
	return mark
}

// pendingOn tells whether m has been sent a write or copy and has not answered.
func (o *op) pendingOn(m *member) bool {
	return o.running && (o.writes() && o.targets&m.bit != 0 && o.acked&m.bit == 0 || o.kind == replication.Copy && o.target == m)
}

func (e *Engine) joinerSynced(m *member, status fault.Kind) {
	m.syncID = 0
	if status != fault.None {
		e.failMember(m, "a sync failed there", false)
		return
	}
	m.syncing, m.failures = nil, 0
	m.flushed = max(m.flushed, m.syncMark)
	e.ping(m)
	e.saveProgress(m)
}
