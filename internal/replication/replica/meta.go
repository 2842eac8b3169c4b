package replica

import (
	"samovar/internal/bitmap"
	"samovar/internal/fault"
	"samovar/internal/replication"
	"samovar/internal/volume"
)

// metaQueue issues saves of metadata one after the other, so that what is on the medium never goes back.
type metaQueue struct {
	running bool
	queue   []func() // each issues one request and calls metaNext from its result
}

func (q *metaQueue) busy() bool { return q.running || len(q.queue) > 0 }

// save issues one metadata request after all earlier ones; then runs when it is durable. Its content is taken
// when it is issued.
func (r *Replica) save(what string, request func() DiskRequest, then func()) {
	r.meta.queue = append(r.meta.queue, func() {
		r.issue(request(), func(res DiskResult) {
			r.meta.running = false
			if res.Status != fault.None {
				r.fail(what)
				return
			}
			then()
			r.nextMeta()
		})
	})
	r.nextMeta()
}

// afterMeta runs then once everything that is being saved is durable: at once if nothing is.
func (r *Replica) afterMeta(then func()) {
	if !r.meta.busy() {
		then()
		return
	}
	r.meta.queue = append(r.meta.queue, func() {
		r.meta.running = false
		then()
		r.nextMeta()
	})
}

func (r *Replica) nextMeta() {
	if r.meta.running || r.failed || len(r.meta.queue) == 0 {
		return
	}
	next := r.meta.queue[0]
	r.meta.queue = r.meta.queue[1:]
	r.meta.running = true
	next()
}

func (r *Replica) saveState(then func()) {
	r.save("state", func() DiskRequest {
		s := r.state
		s.Accepted = s.Accepted.Clone()
		s.History = append([]volume.GenerationID(nil), s.History...)
		return DiskRequest{Op: SaveState, State: &s}
	}, then)
}

func (r *Replica) saveMissing(missing *bitmap.Bitmap, then func()) {
	r.save("list of missing blocks", func() DiskRequest {
		return DiskRequest{Op: SaveMissing, Missing: missing.Clone()}
	}, then)
}

// saveRecords makes every mark of now durable; then may run at once.
func (r *Replica) saveRecords(then func()) {
	var last *changeRecord
	for _, e := range r.records.all {
		if e.unsaved {
			last = e
		}
	}
	if last == nil {
		r.afterMeta(then)
		return
	}
	for _, e := range r.records.all {
		if !e.unsaved {
			continue
		}
		done := func() {}
		if e == last {
			done = then
		}
		r.save("change record", func() DiskRequest {
			e.unsaved = false
			rec := volume.ChangeRecord{Pool: e.Pool, Start: e.Start, Blocks: e.Blocks.Clone()}
			return DiskRequest{Op: SaveRecord, Record: &rec}
		}, done)
	}
}

// receivePrepare notes a change of the in-sync set that is about to be proposed. The record as it stands is accepted
// first: what was prepared before may be the only proof that this replica belongs to it (rule 14). A replica that is
// about to join is not in that record; its proof is the new one.
func (r *Replica) receivePrepare(m replication.Message) {
	s := r.engine
	prepare := func() {
		r.state.Prepared, r.state.PreparedID = m.Generation, m.GenerationID
		r.saveState(func() { r.ack(s, m.ID, fault.None) })
	}
	if c := m.Configuration; c != nil && c.Fence() == r.state.Fence {
		if self, ok := c.Member(r.state.Pool); ok && !self.InSync {
			prepare()
			return
		}
	}
	r.acceptThen(m, prepare)
}

// receiveAccept takes the record of a change that happened: change records start and end with it (rules 2, 16).
func (r *Replica) receiveAccept(m replication.Message) {
	s := r.engine
	r.acceptThen(m, func() { r.ack(s, m.ID, fault.None) })
}

func (r *Replica) acceptThen(m replication.Message, then func()) {
	s, next := r.engine, m.Configuration
	status := r.acceptable(next)
	if status != fault.None {
		r.ack(s, m.ID, status)
		return
	}
	r.startRecords(next)
	r.saveRecords(func() {
		if s != r.engine {
			return // the engine that sent it is gone; the next one sends its own
		}
		r.accept(next, then)
	})
}

func (r *Replica) acceptable(next *volume.Configuration) fault.Kind {
	if next == nil || next.Volume != r.state.Volume || next.Size != r.state.Accepted.Size || next.Validate() != nil {
		return fault.Invalid
	}
	if self, ok := next.Member(r.state.Pool); !ok || !self.InSync {
		return fault.Invalid
	}
	if next.Fence() != r.state.Fence || next.Generation < r.state.Accepted.Generation {
		return fault.Stale
	}
	return fault.None
}

// startRecords begins the record of every replica that next declares absent and that has none.
func (r *Replica) startRecords(next *volume.Configuration) {
	for _, y := range next.Groups[0].Members {
		if y.InSync || y.Pool == r.state.Pool || r.records.get(y.Pool) != nil {
			continue
		}
		// Who was no member, or knows nothing of the absent one, cannot say what it lacks from the start.
		rec := volume.ChangeRecord{Pool: y.Pool, Start: next.Generation + 1, Blocks: &bitmap.Bitmap{}}
		if before, ok := r.state.Accepted.Member(y.Pool); ok && before.InSync && !r.state.CatchingUp {
			// This replica was a member all along: what the absent one may lack since it left was not yet
			// completed everywhere, and so is among the ranges remembered here.
			rec.Start = y.Last + 1
		}
		if !r.opts.Bugs.RecordFromNow {
			for _, g := range r.uncompleted() {
				rec.Blocks.Add(replication.Blocks(g))
			}
		}
		r.records.set(rec)
	}
}

// uncompleted lists every range that some replica may not have completed.
func (r *Replica) uncompleted() []volume.Range {
	size := r.state.Accepted.Size
	out := r.recents.ranges(size)
	if r.broken || r.recents.wide {
		out = append(out, r.log.dirtyRanges(size)...)
	}
	if r.recents.wide {
		for _, w := range r.waiting {
			out = append(out, w.message.Range)
		}
		for _, w := range r.fetches {
			out = append(out, w.message.Range)
		}
	}
	return out
}

// accept makes next the accepted configuration. The record of a replica that is in-sync again goes afterwards.
func (r *Replica) accept(next *volume.Configuration, then func()) {
	if len(r.state.History) == 0 || r.state.History[0] != next.GenerationID {
		r.state.History = append([]volume.GenerationID{next.GenerationID}, r.state.History...)
		r.state.History = r.state.History[:min(len(r.state.History), volume.HistoryLength)]
	}
	r.state.Accepted = next.Clone()
	caughtUp := r.state.CatchingUp
	r.state.CatchingUp, r.state.Base, r.state.BaseID = false, 0, volume.GenerationID{}
	r.saveState(func() {
		for _, y := range next.Groups[0].Members {
			if y.InSync && r.records.get(y.Pool) != nil {
				r.records.remove(y.Pool)
				pool := y.Pool
				r.save("change record", func() DiskRequest {
					return DiskRequest{Op: DropRecord, Record: &volume.ChangeRecord{Pool: pool}}
				}, func() {})
			}
		}
		if caughtUp {
			r.missing.Clear()
		}
		then()
	})
}

// receiveCatchUp: this replica is not in-sync and lacks the blocks named. Durable before a byte changes (rule 17).
func (r *Replica) receiveCatchUp(m replication.Message) {
	s := r.engine
	missing := m.Bitmap.Clone()
	settle := func(id uint64) {
		// What was in doubt here is in the list now, durably.
		if !m.Full {
			return
		}
		r.recents.clear()
		r.log.settle(id) // not clean before this replica has synced them
		r.broken = false
	}
	r.missing = missing
	if r.opts.Bugs.CatchUpNotDurable {
		r.state.CatchingUp = true
		settle(0) // as if all that the list names were safe now
		r.ack(s, m.ID, fault.None)
		return
	}
	r.saveMissing(missing, func() {
		if r.state.CatchingUp && !m.Full {
			r.ack(s, m.ID, fault.None)
			return
		}
		r.state.CatchingUp, r.state.Base, r.state.BaseID = true, m.Generation, m.GenerationID
		r.saveState(func() {
			settle(m.ID)
			r.ack(s, m.ID, fault.None)
		})
	})
}

// receiveRecords replaces what is known of an absent replica.
func (r *Replica) receiveRecords(m replication.Message) {
	s := r.engine
	if m.Record == nil || m.Record.Pool == r.state.Pool {
		r.ack(s, m.ID, fault.Invalid)
		return
	}
	r.records.set(volume.ChangeRecord{Pool: m.Record.Pool, Start: m.Record.Start, Blocks: m.Record.Blocks.Clone()})
	r.saveRecords(func() { r.ack(s, m.ID, fault.None) })
}

// receiveSettled: every range in doubt from older epochs is identical on all in-sync replicas and synced.
func (r *Replica) receiveSettled(m replication.Message) {
	r.recents.inherited.Clear()
	r.log.settle(0)
	r.broken = false
	r.ack(r.engine, m.ID, fault.None)
}
