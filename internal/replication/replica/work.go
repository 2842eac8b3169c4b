package replica

import (
	"samovar/internal/fault"
	"samovar/internal/replication"
)

// receiveWork takes a Write, Zero or Copy.
func (r *Replica) receiveWork(m replication.Message) {
	if !r.inside(m.Range) || m.ID == 0 || len(m.Forward) != 0 {
		r.refuse(r.engine, fault.Invalid, "a request outside the volume, without number, or to be forwarded")
		return
	}
	r.recents.add(m.ID, m.Range, m.ID <= r.highest, r.opts.RecentLimit)
	r.highest = max(r.highest, m.ID)
	r.records.mark(m.Range)
	r.consumed += m.Range.Length
	r.undone += m.Range.Length
	w := &work{session: r.engine, message: m}
	w.from, w.to = replication.Regions(m.Range)
	if m.Kind != replication.Copy {
		r.enqueue(w)
		return
	}
	r.begin()
	r.token++
	r.fetches[r.token] = w
	r.act.Fetches = append(r.act.Fetches, Fetch{
		Token: r.token, Source: m.Source, Range: m.Range, Fence: r.state.Fence,
	})
}

// Fetched takes the data of a copy. A result that nobody waits for any more is dropped.
func (r *Replica) Fetched(res FetchResult) {
	w := r.fetches[res.Token]
	delete(r.fetches, res.Token)
	switch {
	case w == nil:
	case res.Status != fault.None:
		r.undone -= w.message.Range.Length
		r.ack(w.session, w.message.ID, fault.Unavailable)
	default:
		w.copied = res.Payload
		r.enqueue(w)
	}
	r.advance()
}

// enqueue lets work wait for the log. Copies of a settlement may not wait behind writes that wait for it.
func (r *Replica) enqueue(w *work) {
	if r.opts.Bugs.DataBeforeLog {
		r.perform(w)
		return
	}
	r.waiting = append(r.waiting, w)
}

// pumpLog plans log room for waiting work, performs what is ready, and starts the next change of the log.
func (r *Replica) pumpLog() {
	for r.planWork() && r.makeRoom() {
	}
	r.changeLog()
}

// planWork tells whether the log is full: work waits that has no room in it. Work behind it waits too, so that IDs
// reach the log in order.
func (r *Replica) planWork() (full bool) {
	kept := r.waiting[:0]
	for _, w := range r.waiting {
		// A settling copy never waits for room: what would make room waits for it.
		urgent := w.message.Kind == replication.Copy && !r.state.CatchingUp
		if !w.planned && (!full || urgent) {
			// After a failed sync no region becomes clean; the log grows rather than stop all writes.
			w.planned = r.log.plan(w.from, w.to, w.message.ID, urgent || r.broken)
			full = full || !w.planned
		}
		if w.planned && r.log.durable(w.from, w.to) {
			r.perform(w)
		} else {
			kept = append(kept, w)
		}
	}
	clear(r.waiting[len(kept):])
	r.waiting = kept
	return full
}

// makeRoom drops clean regions, or asks the engine for the sync that makes them clean. It tells whether there is
// room now.
func (r *Replica) makeRoom() bool {
	if r.log.dropping {
		return false
	}
	regions := r.log.cleanRegions(false)
	if len(regions) == 0 {
		if r.engine != 0 && r.log.askSync() {
			r.send(r.engine, replication.Message{Kind: replication.NeedSync})
		}
		return false
	}
	return r.dropClean(regions)
}

// dropClean forgets clean regions once the marks of change records in them are durable. It tells whether that is
// done already.
func (r *Replica) dropClean(regions []uint64) (done bool) {
	r.log.dropping = true
	r.saveRecords(func() {
		done = true
		r.log.dropping = false
		r.log.drop(regions)
	})
	return done
}

// receivePing confirms the epoch. Regions that are clean and no longer used leave the log, so that a restart leaves
// little in doubt; when nothing is dirty any more, all do.
func (r *Replica) receivePing(m replication.Message) {
	r.send(r.engine, replication.Message{Kind: replication.Pong, Stamp: m.Stamp, Credit: r.limit})
	r.log.asked = 0 // who still waits for room asks again
	cold := r.log.coldRegions()
	if r.log.dropping || len(r.waiting) > 0 {
		return
	}
	if r.log.allClean() {
		cold = r.log.cleanRegions(true)
	}
	if len(cold) > 0 {
		r.dropClean(cold)
	}
}

// changeLog sends one change of the log to the medium; many requests share it.
func (r *Replica) changeLog() {
	if r.log.changing {
		return
	}
	add, drop := r.log.take()
	if len(add) == 0 && len(drop) == 0 {
		return
	}
	r.log.changing = true
	r.issue(DiskRequest{Op: LogChange, Add: add, Drop: drop}, func(res DiskResult) {
		r.log.changing = false
		if res.Status != fault.None {
			r.fail("log")
			return
		}
		r.log.added(add)
	})
}

// perform puts work on the medium.
func (r *Replica) perform(w *work) {
	m := w.message
	q := DiskRequest{Op: DiskWrite, Range: m.Range, Payload: m.Payload, FUA: m.FUA}
	switch m.Kind {
	case replication.Zero:
		q.Op, q.Punch = DiskZero, m.Punch
	case replication.Copy:
		q.Op, q.Payload, q.SkipHoles = DiskCopyWrite, w.copied, r.opts.Bugs.SkipHoles
	}
	r.issueData(q, func(res DiskResult) {
		r.undone -= m.Range.Length
		if res.Status != fault.None && m.FUA {
			r.syncFailed()
		}
		if r.opts.Bugs.ForgetOwnRecent {
			r.recents.forget(m.ID)
		}
		r.ack(w.session, m.ID, res.Status)
	})
}

func (r *Replica) receiveRead(m replication.Message) {
	if !r.inside(m.Range) {
		r.refuse(r.engine, fault.Invalid, "a read outside the volume")
		return
	}
	s := r.engine
	r.issue(DiskRequest{Op: DiskRead, Range: m.Range}, func(res DiskResult) {
		if s == r.engine {
			r.send(s, replication.Message{
				Kind: replication.Ack, ID: m.ID, Status: res.Status, Range: m.Range, Payload: res.Payload,
				Credit: r.limit,
			})
		}
	})
}

// receiveSync makes durable what this replica acknowledged before.
func (r *Replica) receiveSync(m replication.Message) {
	s := r.engine
	r.issueData(DiskRequest{Op: DiskSync}, func(res DiskResult) {
		if res.Status != fault.None {
			r.syncFailed()
		}
		r.ack(s, m.ID, res.Status)
	})
}

// syncFailed: what was written since the last good sync can no longer be trusted, whatever reads show.
func (r *Replica) syncFailed() {
	r.log.distrust()
	if !r.broken {
		r.broken = true
		r.event("sync-failed", "the medium failed a sync: regions since the last good one will be rewritten")
	}
}

func (r *Replica) receiveReserve(m replication.Message) {
	if !r.inside(m.Range) {
		r.refuse(r.engine, fault.Invalid, "a reservation outside the volume")
		return
	}
	s := r.engine
	r.issueData(DiskRequest{Op: DiskReserve, Range: m.Range}, func(res DiskResult) { r.ack(s, m.ID, res.Status) })
}

// receiveFetch serves a copying replica. It obeys the same engine, or it gets nothing.
func (r *Replica) receiveFetch(s Session, m replication.Message) {
	answer := replication.Message{Kind: replication.Fetched, ID: m.ID, Range: m.Range}
	switch {
	case m.Fence != r.state.Fence || r.engine == 0:
		// Not before this engine knows this incarnation: it may have lost what the copy is made for (rule 11).
		answer.Status = fault.Fenced
	case r.state.CatchingUp:
		answer.Status = fault.Stale // no source (rule 17)
	case !r.inside(m.Range):
		answer.Status = fault.Invalid
	default:
		r.issue(DiskRequest{Op: DiskRead, Range: m.Range, Holes: true}, func(res DiskResult) {
			answer.Status, answer.Payload = res.Status, res.Payload
			if m.Fence != r.state.Fence || r.engine == 0 {
				answer.Status, answer.Payload = fault.Fenced, nil
			}
			r.send(s, answer)
		})
		return
	}
	r.send(s, answer)
}

// receiveCancel gives a copy up. A copy that is already on its way to the medium finishes and acknowledges itself.
func (r *Replica) receiveCancel(m replication.Message) {
	for token, w := range r.fetches {
		if w.message.ID == m.Target {
			delete(r.fetches, token)
			r.undone -= w.message.Range.Length
			r.ack(r.engine, m.Target, fault.Aborted)
			return
		}
	}
	for i, w := range r.waiting {
		if w.message.ID == m.Target && w.message.Kind == replication.Copy {
			r.waiting = append(r.waiting[:i], r.waiting[i+1:]...)
			r.undone -= w.message.Range.Length
			r.ack(r.engine, m.Target, fault.Aborted)
			return
		}
	}
}
