package simulation

import (
	"time"

	"samovar/internal/volume"
)

// truth knows what really happened to each replica, to judge whether a loss of writes that were not flushed is
// excused (durability table): only if no in-sync replica kept running, as far as anybody can tell, and one of them
// really lost something.
type truth struct {
	w *World
	// brokenAt is when the replica of a machine last restarted with something unsynced, or could not write; nobody
	// can tell then what it still has. It is whole again once it is known to be equal to the others.
	brokenAt []time.Duration
	whole    []bool
	lossy    []bool // it really lost something since it was whole
}

func newTruth(w *World) *truth {
	n := len(w.machines)
	t := &truth{w: w, brokenAt: make([]time.Duration, n), whole: make([]bool, n), lossy: make([]bool, n)}
	for i := range t.whole {
		t.whole[i] = true
	}
	return t
}

// broke: a replica restarted, or failed, so that nobody can tell what it has; really says that it lost writes which
// it had acknowledged.
func (t *truth) broke(m *machine, why string, really bool) {
	i := m.index
	t.brokenAt[i], t.whole[i], t.lossy[i] = t.w.now, false, t.lossy[i] || really
	if t.w.tracing() {
		t.w.log("truth: replica %d is broken: %s, really %v", i, why, really)
	}
	t.excuse(t.w.store.inSync(), "the last whole in-sync replica broke")
}

func (t *truth) mend(m *machine) { t.whole[m.index], t.lossy[m.index] = true, false }

// excuse allows the loss of unflushed writes if none of the members is whole and one has really lost something.
func (t *truth) excuse(members []*machine, why string) {
	really := false
	for _, m := range members {
		if t.whole[m.index] {
			return
		}
		really = really || t.lossy[m.index]
	}
	if really {
		t.w.log("truth: unflushed writes may be lost: %s", why)
		t.w.register.lossy(t.w.now)
		t.w.stats.Excused++
	}
}

// recordChanged follows the in-sync set. A joiner is whole unless it broke since the change was under way. An
// engine that removes the whole members because it cannot know yet that the others just broke is excused.
func (t *truth) recordChanged(before, after volume.Configuration) {
	removed := false
	for i, rm := range after.Groups[0].Members {
		m := t.w.machineOf(rm.Pool)
		was := before.Groups[0].Members[i].InSync
		switch {
		case rm.InSync && !was:
			if t.w.now-t.brokenAt[m.index] > t.w.profile.blindness {
				t.mend(m)
			}
			t.w.stats.Joins++
		case was && !rm.InSync:
			removed = true
			t.w.stats.Removals++
		}
	}
	if !removed {
		return
	}
	members := t.w.members(after)
	for _, m := range members {
		if t.whole[m.index] || t.w.now-t.brokenAt[m.index] > t.w.profile.blindness {
			return
		}
	}
	t.excuse(members, "the rest had just broken when the whole one was removed")
}

// reported: an engine says that no replica which kept running is left.
func (t *truth) reported(p *engineProcess) {
	t.w.log("truth: engine %d reports that unflushed writes may be lost", p.number)
	members := t.w.store.inSync()
	if s := t.w.store; s.restored && p.started >= s.restoredAt {
		members = t.w.members(s.current)
	}
	for _, m := range members {
		if t.lossy[m.index] {
			t.w.register.lossy(t.w.now)
			return
		}
	}
}

// served looks at an attachment that has just succeeded.
func (t *truth) served(p *engineProcess, lossy bool) {
	s := t.w.store
	if s.restored && s.current.Epoch == p.epoch && p.started >= s.restoredAt {
		for _, m := range t.w.machines {
			if m.disk != nil && m.disk.meta.state.Accepted.Generation > s.current.Generation {
				t.w.fail("rule 14: engine %d serves %s from an old copy of the store; replica %d has accepted %s", p.number,
					recordText(s.current), m.index, recordText(m.disk.meta.state.Accepted))
			}
		}
		s.restored = false // nobody relied on what was forgotten: this is the truth from now on
	}
	if !lossy || s.restored || s.current.Epoch != p.epoch {
		return
	}
	for _, m := range s.inSync() {
		if t.brokenAt[m.index] != 0 {
			return
		}
	}
	t.w.stats.FalseAlarms++ // a replica that kept running was silent for a while, then came back
}

// settled: the engine has made all in-sync replicas identical.
func (t *truth) settled(p *engineProcess) {
	for _, m := range t.w.store.inSync() {
		if t.brokenAt[m.index] < p.started {
			t.mend(m)
		}
	}
}

// flushed: a sync was acknowledged by an engine that still owns the record.
func (t *truth) flushed(p *engineProcess, submitted time.Duration) {
	if t.w.store.current.Epoch != p.epoch {
		return
	}
	for _, m := range t.w.store.inSync() {
		if t.brokenAt[m.index] < submitted {
			t.mend(m)
		}
	}
}
