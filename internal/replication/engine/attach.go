package engine

import (
	"strconv"

	"samovar/internal/bitmap"
	"samovar/internal/fault"
	"samovar/internal/replication"
	"samovar/internal/volume"
)

// claimed takes the answer to the claim.
func (e *Engine) claimed(o Outcome, current volume.Configuration) {
	switch {
	case o == Unknown:
		e.storeFailed()
	case o == Applied || current.Engine == e.opts.Engine && current.Epoch == e.claim.next.Epoch:
		e.startFencing(current)
	default:
		e.end(fault.Busy, "another attachment came first: the volume is held by "+current.Holder)
	}
}

func (e *Engine) claimLooked(status fault.Kind, current volume.Configuration) {
	switch {
	case status == fault.NotFound:
		e.end(fault.NotFound, "the volume's record is gone")
	case status != fault.None:
		e.storeFailed()
	case current.Engine == e.opts.Engine && current.Epoch == e.claim.next.Epoch:
		e.startFencing(current)
	case current.Revision == e.claim.next.Revision && current.GenerationID == e.claim.next.GenerationID:
		// Not there yet. The same claim again: if the first one is still on its way, only one can count.
		e.claim.token = e.propose(e.claim.next)
	default:
		e.end(fault.Busy, "another attachment came first: the volume is held by "+current.Holder)
	}
}

// startFencing begins to fence every replica, members and others alike.
func (e *Engine) startFencing(record volume.Configuration) {
	e.record = record.Clone()
	e.phase, e.since, e.retries = Fencing, 0, 0
	old := e.members
	e.members = nil
	for i, rm := range record.Groups[0].Members {
		m := &member{pool: rm.Pool, bit: 1 << i, inSync: rm.InSync, need: &bitmap.Bitmap{}}
		m.reset()
		e.members = append(e.members, m)
	}
	for _, m := range old {
		e.hangUp(m)
	}
	for _, m := range e.members {
		e.dial(m)
	}
}

// standing is what an in-sync member's Welcome says about its right to be one (rule 14).
func (e *Engine) standing(k *replication.Knowledge) fault.Kind {
	switch {
	case k.Accepted.GenerationID == e.record.GenerationID:
		return fault.None
	case k.Accepted.Generation >= e.record.Generation:
		return fault.Stale // it knows more than the record, or another history
	case k.PreparedID == e.record.GenerationID && k.Prepared == e.record.Generation:
		return fault.None
	}
	return fault.Unavailable // behind: a rolled-back disk or machine
}

// usable tells whether m can carry the volume: in-sync, fenced, and not behind.
func (m *member) usable() bool { return m.inSync && m.up && !m.failing && !m.parting }

// expected tells whether a replica that is no member may still answer: it may know a higher generation (rule 14).
func (m *member) expected() bool { return !m.up && (m.dialing || m.connected) }

// advancePhase moves an attachment on.
func (e *Engine) advancePhase() {
	switch e.phase {
	case Fencing:
		usable, missing := 0, 0
		for _, m := range e.members {
			if m.usable() {
				usable++
			} else if m.inSync && !m.failing || !m.inSync && m.expected() {
				missing++
			}
		}
		if usable > 0 && (missing == 0 || e.since >= e.opts.AttachWait) {
			e.phase, e.since = Waiting, 0
			e.advancePhase()
		}
	case Waiting:
		if e.fencedAll() || e.quiet || e.now >= e.lastFence+e.opts.Lease+e.opts.Lease/10 {
			e.startSettling()
		}
	case Settling:
		if e.change == nil && e.out == 0 && !e.anyFailing() {
			e.phase, e.since = Serving, 0
			e.event("serving", nil, "attached with epoch "+strconv.FormatUint(uint64(e.record.Epoch), 10), e.doubtful())
		}
	}
}

// fencedAll tells whether every in-sync replica has confirmed this epoch: no other engine can read any more.
func (e *Engine) fencedAll() bool {
	for _, m := range e.members {
		if m.inSync && !m.fenced {
			return false
		}
	}
	return true
}

func (e *Engine) anyFailing() bool {
	for _, m := range e.members {
		if m.inSync && m.failing {
			return true
		}
	}
	return false
}

// startSettling gathers doubt, chooses its source, and removes in-sync members that were not reached.
func (e *Engine) startSettling() {
	usable := e.usableMembers()
	if len(usable) == 0 {
		e.phase, e.since = Fencing, 0
		return
	}
	e.phase, e.since = Settling, 0
	doubt := &bitmap.Bitmap{}
	e.lossy = true
	for _, m := range e.members {
		if m.inSync {
			m.need.Clear() // of an earlier try: doubt is gathered anew
		}
	}
	for _, m := range usable {
		addRanges(doubt, m.knowledge.Doubt)
		e.lossy = e.lossy && m.knowledge.Broken
	}
	for _, m := range e.members {
		if m.inSync && !m.usable() && !m.failing {
			e.failMember(m, "not reached when the volume was attached", false)
		}
		if !m.inSync {
			e.gatherNeed(m, usable, doubt)
		}
	}
	e.oldDoubt = doubt
	e.chooseSource(usable, doubt)
	for _, m := range e.members {
		if m.inSync && m.failing {
			m.need.Union(doubt)
		}
	}
	if e.lossy && !doubt.Empty() {
		e.event("unflushed-lost", nil, "no replica kept running: writes that were not flushed may be lost in the ranges that the logs name",
			doubt.Count()*volume.BlockSize)
	}
	if !e.anyFailing() {
		e.acceptOnly()
	}
}

func (e *Engine) usableMembers() []*member {
	var out []*member
	for _, m := range e.members {
		if m.usable() {
			out = append(out, m)
		}
	}
	return out
}

func addRanges(b *bitmap.Bitmap, ranges []volume.Range) {
	for _, g := range ranges {
		b.Add(replication.Blocks(g))
	}
}

// gatherNeed computes what an absent replica lacks from what every reached in-sync replica recorded (rule 16).
func (e *Engine) gatherNeed(m *member, from []*member, doubt *bitmap.Bitmap) {
	rm, _ := e.record.Member(m.pool)
	m.full = rm.Last == 0
	m.need = doubt.Clone()
	for _, s := range from {
		found := false
		for _, rec := range s.knowledge.Records {
			if rec.Pool == m.pool && rec.Start <= rm.Last+1 {
				found = true
				m.need.Union(rec.Blocks)
			}
		}
		m.full = m.full || !found
	}
	if m.full {
		m.need.Add(0, e.blocks())
	}
}

// chooseSource picks the member that doubtful ranges are copied from: one that kept running where there is one
// (rule 12). All others then differ from it in the doubtful ranges.
func (e *Engine) chooseSource(from []*member, doubt *bitmap.Bitmap) {
	e.source = nil
	for _, m := range from {
		better := e.source == nil || e.source.knowledge.Broken && !m.knowledge.Broken ||
			e.source.knowledge.Broken == m.knowledge.Broken && m.pool == e.opts.Local
		if better {
			e.source = m
		}
	}
	e.sourceBroken = e.source == nil || e.source.knowledge.Broken
	for _, m := range from {
		m.copyFails, m.pauseTill = 0, 0 // those were the old source's
		m.doubt = &bitmap.Bitmap{}
		// A source that may have failed a sync rewrites what it has: its cache may show what its medium lost.
		if m != e.source || m.knowledge.Broken {
			m.doubt = doubt.Clone()
		}
	}
}

// unsettle: the last in-sync member may show what its medium has lost. It rewrites what it has before a sync counts
// again; whoever else holds these blocks may hold something else.
func (e *Engine) unsettle(m *member, doubt *bitmap.Bitmap) {
	e.source = m
	e.doubtAgain(doubt)
	m.doubt.Union(e.oldDoubt)
	e.othersDiffer(m, e.oldDoubt)
}

// doubtAgain: no sync counts that was started before, and nothing is settled until these blocks are as well.
func (e *Engine) doubtAgain(doubt *bitmap.Bitmap) {
	e.settled, e.distrust = false, e.nextID
	if e.oldDoubt == nil {
		e.oldDoubt = &bitmap.Bitmap{}
	}
	e.oldDoubt.Union(doubt)
}

// syncLost: the last in-sync member failed a sync. What it acknowledged since the one before is suspect (rule 6).
func (e *Engine) syncLost(m *member, covers *bitmap.Bitmap) {
	e.suspect.Union(covers)
	e.suspect.Union(e.unsynced)
	doubt := &bitmap.Bitmap{}
	e.suspect.Runs(func(from, to uint64) bool {
		doubt.Add(replication.Blocks(volume.Range{
			Offset: from * volume.SectorSize, Length: (to - from) * volume.SectorSize,
		}))
		return true
	})
	for _, o := range e.active {
		if o.running && o.writes() {
			doubt.Add(replication.Blocks(o.at))
		}
	}
	e.unsettle(m, doubt)
	e.hangUp(m) // its next Welcome names its whole log
}

// doubtful is how many bytes may still differ between in-sync replicas.
func (e *Engine) doubtful() uint64 {
	most := uint64(0)
	for _, m := range e.members {
		if m.inSync {
			most = max(most, m.doubt.Count())
		}
	}
	return most * volume.BlockSize
}

// sourceLost chooses another source for what is still in doubt. Whatever was copied only to some is in doubt again.
func (e *Engine) sourceLost() {
	doubt := &bitmap.Bitmap{}
	for _, m := range e.members {
		if m.inSync {
			doubt.Union(m.doubt)
		}
	}
	usable := e.usableMembers()
	if len(usable) == 0 || doubt.Empty() || e.betterIsAway(usable) {
		return
	}
	was := e.sourceBroken // when it was chosen: it may have restarted since
	for _, m := range e.members {
		if m.inSync {
			m.doubt.Union(doubt) // also who is away now, the old source among them
		}
	}
	e.chooseSource(usable, doubt)
	if !was && e.sourceBroken {
		e.lossy = true
		e.event("unflushed-lost", e.source, "the last replica that kept running was lost before its writes were copied",
			doubt.Count()*volume.BlockSize)
	}
}

// betterIsAway tells whether a member that kept running is only out of reach for now, and no such member is here:
// copying from one that lost writes would put them over the good ones.
func (e *Engine) betterIsAway(usable []*member) bool {
	for _, m := range usable {
		if !m.knowledge.Broken {
			return false
		}
	}
	for _, m := range e.members {
		if m.inSync && (!m.failing || m.soft) && m.knowledge != nil && !m.knowledge.Broken {
			return true
		}
	}
	return false
}
