package simulation

import "time"

// endure ends the faults except those that an engine must live with: disks that hang for some operations, replicas
// that only refuse, replicas that cannot reach each other. One more is added. Requests must go on as long as a whole
// member of the in-sync set is free of them (rules 23 and 24).
func (w *World) endure() {
	if w.profile.engine.SlowAfter == 0 || w.profile.replicas == 1 || !w.chance(0.5) {
		return
	}
	w.log("all faults stop but those that must be endured")
	w.calm = true
	w.faults.healPassing()
	w.control.operate()
	w.profile.think = max(w.profile.think, 50*time.Millisecond)
	w.runUntil(2*w.profile.engine.PingTimeout+second, func() bool { return false }) // who was silent is back or out
	w.afflict()
	if w.broken != "" || !w.bearable(nil) {
		return
	}
	w.stats.Endured++
	for range 3 {
		var p *engineProcess
		if !w.runUntil(w.deadlines(), w.moving(&p)) {
			w.stuck("requests wait for a fault that must be endured")
			return
		}
	}
}

// afflict adds a lasting fault where others can still do the work.
func (w *World) afflict() {
	m := w.machines[w.rng.IntN(w.profile.replicas)]
	kind := hangDisk + w.rng.IntN(3)
	if kind == cutCopies || w.bearable(m) {
		w.log("fault: %s on %d", faultNames[kind], m.index)
		w.faults.lasting(kind, m)
	}
}

// bearable tells whether some member of the in-sync set, besides one, holds as much as any and can do its work. One that
// failed or restarted under a living engine does not count: what it has lost is not known to that engine. Nor does one
// that cannot be copied to by a member which is afflicted: only one of the two can stay, and which is open.
func (w *World) bearable(besides *machine) bool {
	whole := false
	for _, m := range w.store.inSync() {
		whole = whole || w.truth.whole[m.index]
	}
	for _, m := range w.store.inSync() {
		switch {
		case m == besides || m.afflicted() || whole && !w.truth.whole[m.index]:
		case m.replica == nil || w.failedUnder(m):
		case w.cutFromAfflicted(m):
		default:
			return true
		}
	}
	return false
}

func (w *World) failedUnder(replica *machine) bool {
	for _, m := range w.machines {
		for _, e := range m.engines {
			if e.started < max(replica.replica.started, w.truth.brokenAt[replica.index]) {
				return true
			}
		}
	}
	return false
}

func (w *World) cutFromAfflicted(m *machine) bool {
	for _, o := range w.store.inSync() {
		if o.afflicted() && w.noCopies(o, m) {
			return true
		}
	}
	return false
}

// deadlines is how long it may take until no request waits for a lasting fault any more: a member is found slow or
// silent, a new attachment waits for it and for leases, and copies that cannot be made are tried often enough.
func (w *World) deadlines() time.Duration {
	o := &w.profile.engine
	each := 2*o.CopyDeadline + o.RetryDelay<<4 + o.PingTimeout
	return 20*time.Second + 4*(o.PingTimeout+o.SlowAfter+o.AttachWait+o.Lease) + 2*8*each
}
