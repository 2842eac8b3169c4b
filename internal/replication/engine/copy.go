package engine

import (
	"samovar/internal/bitmap"
	"samovar/internal/fault"
	"samovar/internal/replication"
	"samovar/internal/volume"
)

// settleTries is how often in a row a settling copy to a member may fail.
const settleTries = 8

// advanceCopies queues copies of doubtful ranges and of what absent replicas lack, and what follows from them.
func (e *Engine) advanceCopies() {
	if e.phase != Serving && e.phase != Detaching {
		return
	}
	if e.source != nil && !e.source.usable() && e.doubtful() > 0 {
		e.sourceLost()
	}
	for _, m := range e.members {
		if m.inSync {
			e.queueCopies(m, m.doubt, true)
		} else if e.settled && e.phase == Serving {
			e.startCatchUp(m)
			if m.catchUp == catchUpCopying {
				e.queueCopies(m, m.need, false)
			}
		}
		e.expireCopies(m)
	}
	e.settle()
	e.keepSynced()
	e.keepJoinersSynced()
	e.advanceJoin()
}

// queueCopies keeps the allowed number of copies to m under way, walking over the blocks in order.
func (e *Engine) queueCopies(m *member, blocks *bitmap.Bitmap, settles bool) {
	if !m.up || m.failing || e.now < m.pauseTill {
		return
	}
	for tries := 0; m.copying < e.opts.Copies && tries < 2*e.opts.Copies; tries++ {
		from, to, ok := blocks.Next(m.cursor, e.opts.CopyBlocks)
		if !ok && m.cursor > 0 {
			m.cursor = 0
			from, to, ok = blocks.Next(0, e.opts.CopyBlocks)
		}
		if !ok {
			return
		}
		m.cursor = to
		at := volume.Range{Offset: from * volume.BlockSize}
		at.Length = min(to*volume.BlockSize, e.size()) - at.Offset
		if e.copyQueued(m, at) {
			continue
		}
		m.copying++
		e.queue = append(e.queue, &op{kind: replication.Copy, at: at, target: m, settles: settles})
	}
}

func (e *Engine) copyQueued(m *member, at volume.Range) bool {
	for _, list := range [2][]*op{e.queue, e.active} {
		for _, o := range list {
			if o.kind == replication.Copy && o.target == m && o.at.Overlaps(at) {
				return true
			}
		}
	}
	return false
}

// startCopy orders the target to fetch from a source. False: no source now.
func (e *Engine) startCopy(o *op) bool {
	m := o.target
	source, left := e.source, m.doubt
	if !o.settles {
		source, left = e.copySource(), m.need
	}
	from, to := replication.Blocks(o.at)
	if !o.settles && source == m || !left.Any(from, to) || !m.up {
		m.copying = max(m.copying-1, 0) // no longer wanted
		return true
	}
	if source == nil || !source.usable() || source != m && source.doubt.Any(from, to) {
		return false
	}
	o.source = source
	o.targets = m.bit
	e.activate(o)
	if o.settles && !e.settled && e.settleFloor == 0 && len(e.setOf(e.record)) > 1 {
		e.settleFloor = o.id
	}
	e.send(m, replication.Message{Kind: replication.Copy, ID: o.id, Range: o.at, Source: source.pool})
	return true
}

// copySource picks the in-sync replica that a returning one copies from; the one after the last, to share the work.
func (e *Engine) copySource() *member {
	usable := e.usableMembers()
	if len(usable) == 0 {
		return nil
	}
	return usable[int(e.nextID)%len(usable)]
}

// copyDone takes the target's answer.
func (e *Engine) copyDone(o *op, status fault.Kind) {
	m := o.target
	if o.tainted && status == fault.None {
		status = fault.Unavailable
	}
	o.acked, o.status = m.bit, status
	from, to := replication.Blocks(o.at)
	switch {
	case status == fault.None && o.settles:
		if o.source == e.source {
			m.doubt.Remove(from, to)
		}
		e.dirtyID = max(e.dirtyID, o.id)
	case status == fault.None:
		m.need.Remove(from, to)
		m.unsynced.Add(from, to)
	case status == fault.IO || status == fault.Corrupt:
		e.failMember(m, "a copy failed there: "+status.String(), false)
	}
	if status == fault.None {
		e.copied += o.at.Length
		m.copyFails = 0
		return
	}
	if status != fault.Aborted || o.cancel != 0 {
		if m.copyFails == 0 {
			e.event("copy-failed", m, "a copy failed ("+status.String()+"): another source or time is tried", o.at.Length)
		}
		m.pauseTill = e.now + e.opts.RetryDelay<<min(m.copyFails, 4)
		m.copyFails++
		if o.settles && m.copyFails == 2 {
			// Is it the way between them, or the source's medium? A read of our own tells: a source that owes
			// the answer is slow.
			e.send(o.source, replication.Message{Kind: replication.Read, ID: e.newID(), Range: o.at})
		}
		if o.settles && m.inSync && m.copyFails >= settleTries && (m == o.source || e.waited(o.source) < e.opts.PingInterval) {
			// Writes wait for it, and its source, if that is another one, answers: it leaves, and catches up as it can.
			m.copyFails = 0
			e.failMember(m, "what is in doubt could not be copied to it", false)
		}
	}
}

// othersDiffer: the last in-sync member no longer holds in these blocks what others may hold.
func (e *Engine) othersDiffer(last *member, blocks *bitmap.Bitmap) {
	for _, m := range e.members {
		if m != last {
			m.need.Union(blocks)
		}
	}
}

// copyOver: a copy has left the active list.
func (e *Engine) copyOver(o *op) {
	if o.target.copying > 0 {
		o.target.copying--
	}
}

// expireCopies gives up copies past their deadline: first politely, since the target may be writing; then by
// closing its session, which makes it discard them.
func (e *Engine) expireCopies(m *member) {
	for _, o := range e.active {
		if o.kind != replication.Copy || o.target != m || o.acked != 0 {
			continue
		}
		switch {
		case o.cancel == 0 && e.ran-o.ranAt >= e.opts.CopyDeadline:
			o.cancel = e.ran
			e.send(m, replication.Message{Kind: replication.Cancel, ID: e.newID(), Target: o.id})
		case o.cancel != 0 && e.ran-o.cancel >= e.opts.CopyDeadline:
			e.event("copy-stuck", m, "a copy did not end after it was cancelled", o.at.Length)
			e.hangUp(m)
			return
		}
	}
}

// startCatchUp tells an absent replica what it lacks; it saves that before a byte changes (rule 17).
func (e *Engine) startCatchUp(m *member) {
	if m.inSync || !m.up || e.out&m.bit != 0 || m.catchUp != catchUpNone {
		return
	}
	k := m.knowledge
	rm, _ := e.record.Member(m.pool)
	if !m.started && otherHistory(k, rm) {
		e.setAside(m, "it holds another history of this volume, with writes that are in no copy here: nothing is copied over it before an operator decides (docs/operations.md)")
		return
	}
	if m.started && !m.stillCatchingUp(k, rm) {
		m.full, m.started = true, false // it has forgotten what it was catching up from: its disk was rolled back
	} else if !m.started && !knowsBase(k, rm) {
		m.full = true
	}
	if m.full && !m.started {
		m.need.Add(0, e.blocks())
	}
	addRanges(m.need, k.Doubt)
	m.need.Union(m.unsynced)
	m.unsynced.Clear()
	if k.CatchingUp {
		m.need.Union(k.Missing)
	}
	m.catchUp = catchUpSaving
	e.sendCatchUp(m, true)
	e.event("catching-up", m, "has to copy what it lacks", m.need.Count()*volume.BlockSize)
}

// stillCatchingUp tells whether a replica that this engine told what it lacks still says what it was told.
func (m *member) stillCatchingUp(k *replication.Knowledge, rm volume.Member) bool {
	if m.full {
		rm = volume.Member{}
	}
	return k.CatchingUp && k.Base == rm.Last && k.BaseID == rm.LastID
}

// otherHistory tells whether a replica that is no member accepted a change of the in-sync set after it left, as the
// record has it, or another one under the same number: it took part in a history that this record does not know
// (rules 14 and 21).
func otherHistory(k *replication.Knowledge, rm volume.Member) bool {
	at := k.Accepted
	return rm.Last != 0 && (at.Generation > rm.Last || at.Generation == rm.Last && at.GenerationID != rm.LastID)
}

// knowsBase tells whether a replica was a member until the record's last generation of it, by its own account.
func knowsBase(k *replication.Knowledge, rm volume.Member) bool {
	if rm.Last == 0 {
		return false
	}
	if k.CatchingUp && k.BaseID == rm.LastID && k.Base == rm.Last {
		return true
	}
	return !k.CatchingUp && k.Accepted.GenerationID == rm.LastID || k.PreparedID == rm.LastID && k.Prepared == rm.Last
}

// lacks is what a replica that is not in-sync does not have, or may lose in a crash.
func (m *member) lacks() *bitmap.Bitmap {
	blocks := m.need.Clone()
	blocks.Union(m.unsynced)
	blocks.Union(m.syncing)
	return blocks
}

func (e *Engine) sendCatchUp(m *member, full bool) {
	rm, _ := e.record.Member(m.pool)
	m.catchUpID = e.newID()
	msg := replication.Message{Kind: replication.CatchUp, ID: m.catchUpID, Full: full}
	msg.Bitmap = m.lacks().Within(replication.MaxRuns, e.blocks())
	if !m.full {
		msg.Generation, msg.GenerationID = rm.Last, rm.LastID
	}
	e.send(m, msg)
}

func (e *Engine) catchUpSaved(m *member, status fault.Kind) {
	m.catchUpID = 0
	if status != fault.None {
		e.setAside(m, "it cannot save what it lacks: "+status.String())
		return
	}
	m.refused = ""
	if m.catchUp == catchUpSaving {
		m.catchUp, m.started, m.cursor = catchUpCopying, true, 0
		m.knowledge.Broken = false // its doubt is in what it lacks, durably
	}
}

// keepJoinersSynced syncs replicas that catch up from time to time, and when their log is filling.
func (e *Engine) keepJoinersSynced() {
	due := e.now-e.progress >= e.opts.SyncInterval
	if due {
		e.progress = e.now
	}
	for _, m := range e.members {
		if m.wantSync && e.joinerMark(m) <= m.flushed {
			continue // it would not make room
		}
		due := due && m != e.joiner && !m.unsynced.Empty()
		if m.catchUp == catchUpCopying && m.syncID == 0 && m.up && (m.wantSync || due) {
			e.syncJoiner(m)
		}
	}
}

// saveProgress makes durable what m need not be sent again: on m, and in the change records of the others.
func (e *Engine) saveProgress(m *member) {
	if m.inSync || m.catchUp != catchUpCopying || m.full {
		return
	}
	if m.catchUpID == 0 {
		e.sendCatchUp(m, false)
	}
	for _, s := range e.members {
		if s.usable() && s != e.joiner {
			e.sendRecord(s, m)
		}
	}
}

// sendRecord gives s everything that is known of what m lacks (rule 16).
func (e *Engine) sendRecord(s, m *member) uint64 {
	rm, _ := e.record.Member(m.pool)
	rec := volume.ChangeRecord{Pool: m.pool, Start: rm.Last + 1, Blocks: m.lacks()}
	if m.full {
		rec.Start = e.record.Generation + 1
	}
	for _, o := range e.active {
		if o.running && (o.writes() || o.kind == replication.Copy) {
			rec.Blocks.Add(replication.Blocks(o.at))
		}
	}
	rec.Blocks = rec.Blocks.Within(replication.MaxRuns, e.blocks())
	id := e.newID()
	e.send(s, replication.Message{Kind: replication.Records, ID: id, Record: &rec})
	return id
}
