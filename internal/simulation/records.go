package simulation

import (
	"slices"
	"time"

	"samovar/internal/fault"
	"samovar/internal/replication/engine"
	"samovar/internal/volume"
)

// store is the cluster store: one record, linearizable, with a revision that counts up.
type store struct {
	w          *World
	current    volume.Configuration
	revision   volume.Revision
	history    []volume.Configuration // every value, oldest first
	down       bool
	unsure     float64 // chance that an answer gets lost
	late       float64 // chance that a proposal that got no answer is applied later
	restoredAt time.Duration
	restored   bool                 // an old copy was put back, and no operator has recovered yet
	newest     volume.Configuration // the true newest record while restored
}

func newStore(w *World, record volume.Configuration) *store {
	s := &store{w: w, revision: 10}
	s.put(record)
	return s
}

// put writes a record, whatever stands there.
func (s *store) put(c volume.Configuration) {
	s.revision++
	c = c.Clone()
	c.Revision = s.revision
	s.current = c
	s.history = append(s.history, c)
	s.w.log("store: %s", recordText(c))
	s.w.mix(uint64(c.Revision), uint64(c.Epoch), uint64(c.Generation))
}

// reachable tells whether a machine gets through to the store now.
func (s *store) reachable(m *machine) bool { return !s.down && !m.storeCut }

func (s *store) delay() time.Duration {
	return 200*time.Microsecond + s.w.around(s.w.profile.storeTime)
}

// propose carries a compare-and-swap to the store and its outcome back.
func (s *store) propose(from *machine, next volume.Configuration, answer func(engine.Outcome, volume.Configuration)) {
	w := s.w
	next = next.Clone()
	unknown := func() { answer(engine.Unknown, volume.Configuration{}) }
	timeout := w.between(50*time.Millisecond, 800*time.Millisecond)
	w.after(s.delay(), func() {
		if !s.reachable(from) {
			w.after(timeout, unknown)
			return
		}
		switch {
		case w.chance(s.unsure / 2): // lost on the way there
			w.after(timeout, unknown)
		case w.chance(s.late):
			w.after(timeout, unknown)
			w.after(w.between(0, 3*time.Second), func() { s.swap(next) })
		case w.chance(s.unsure): // the answer is lost
			s.swap(next)
			w.after(timeout, unknown)
		default:
			outcome, current := s.swap(next)
			w.after(s.delay(), func() {
				if s.reachable(from) {
					answer(outcome, current)
				} else {
					w.after(timeout, unknown)
				}
			})
		}
	})
}

// swap writes next if the record still has next's revision. After a restore the same revision comes a second time, so
// the transaction compares more than that: what next follows must be what stands there.
func (s *store) swap(next volume.Configuration) (engine.Outcome, volume.Configuration) {
	if next.Revision != s.current.Revision || s.restoredAt > 0 && !follows(next, s.current) {
		return engine.Conflict, s.current.Clone()
	}
	s.check(next)
	before := s.current
	s.put(next)
	s.w.truth.recordChanged(before, s.current)
	return engine.Applied, s.current.Clone()
}

// follows tells whether next can be a change of cur at all.
func follows(next, cur volume.Configuration) bool {
	sameSet := next.GenerationID == cur.GenerationID
	switch {
	case next.Epoch > cur.Epoch: // a claim
		return sameSet
	case next.Epoch < cur.Epoch || next.Engine != cur.Engine && next.Engine != (volume.EngineID{}):
		return false
	}
	return sameSet || next.Generation == cur.Generation+1
}

// check holds every change of the record to the rules.
func (s *store) check(next volume.Configuration) {
	w, cur := s.w, s.current
	none := volume.EngineID{}
	if err := next.Validate(); err != nil {
		w.fail("record: %v", err)
	}
	switch {
	case next.Volume != cur.Volume || next.Size != cur.Size || len(next.Groups[0].Members) != len(cur.Groups[0].Members):
		w.fail("record: the volume changed: %s -> %s", recordText(cur), recordText(next))
	case next.Epoch < cur.Epoch:
		w.fail("rule 9: the epoch went back: %s -> %s", recordText(cur), recordText(next))
	case next.Epoch == cur.Epoch && next.Engine != cur.Engine && next.Engine != none:
		w.fail("rule 9: another engine in the same epoch: %s -> %s", recordText(cur), recordText(next))
	case next.Generation < cur.Generation:
		w.fail("the generation went back: %s -> %s", recordText(cur), recordText(next))
	}
	changed := false
	for i, m := range next.Groups[0].Members {
		changed = changed || m.InSync != cur.Groups[0].Members[i].InSync
	}
	switch {
	case changed && next.Generation == cur.Generation:
		w.fail("the in-sync set changed without a new generation: %s -> %s", recordText(cur), recordText(next))
	case changed && (cur.Engine != next.Engine || cur.Epoch != next.Epoch):
		w.fail("rule 9: the in-sync set was changed by an engine that does not stand in the record: %s -> %s",
			recordText(cur), recordText(next))
	case next.Generation != cur.Generation && next.GenerationID == cur.GenerationID:
		w.fail("a new generation has the id of the old one: %s -> %s", recordText(cur), recordText(next))
	}
}

// look reads the record.
func (s *store) look(from *machine, answer func(fault.Kind, volume.Configuration)) {
	w := s.w
	w.after(s.delay(), func() {
		if !s.reachable(from) || w.chance(s.unsure/2) {
			w.after(w.between(50*time.Millisecond, 800*time.Millisecond), func() {
				answer(fault.Unavailable, volume.Configuration{})
			})
			return
		}
		current := s.current.Clone()
		w.after(s.delay(), func() { answer(fault.None, current) })
	})
}

// restore puts an old copy of the store back: record and revision go to an earlier moment.
func (s *store) restore() {
	if len(s.history) < 3 || s.restored {
		return
	}
	back := 1 + s.w.rng.IntN(min(6, len(s.history)-1))
	s.restored, s.restoredAt = true, s.w.now
	s.newest = s.current
	s.current = s.history[len(s.history)-1-back].Clone()
	s.revision = s.current.Revision
	s.w.log("store: restored from an old copy: %s", recordText(s.current))
}

// recover plays the operator after a restore: the configuration of the highest generation that any replica has
// accepted comes back, detached, with an epoch above all that any replica knows. Engines are ended before. The
// operator's tool refuses while a member of the highest known set is missing; here all disks can be read.
func (s *store) recover() {
	c, top := s.newest.Clone(), max(s.newest.Epoch, s.current.Epoch)
	for _, m := range s.w.machines {
		if m.disk == nil {
			continue
		}
		known := m.disk.meta.state
		top = max(top, known.Fence.Epoch)
		if a := known.Accepted; a.Generation > c.Generation || c.GenerationID == s.newest.GenerationID && !s.accepted(c) {
			c = a.Clone()
		}
	}
	for _, h := range s.history {
		s.revision = max(s.revision, h.Revision)
	}
	c.Epoch, c.Engine = top+1, volume.EngineID{}
	s.restored = false
	s.put(c)
	s.w.log("store: recovered by the operator")
}

// accepted tells whether some replica has accepted the generation of a record.
func (s *store) accepted(c volume.Configuration) bool {
	for _, m := range s.w.machines {
		if m.disk != nil && m.disk.meta.state.Accepted.GenerationID == c.GenerationID {
			return true
		}
	}
	return false
}

// inSync lists the machines whose replicas the true record names in-sync.
func (s *store) inSync() []*machine {
	record := s.current
	if s.restored {
		record = s.newest
	}
	return s.w.members(record)
}

func (w *World) members(record volume.Configuration) []*machine {
	var out []*machine
	for _, rm := range record.Groups[0].Members {
		if rm.InSync {
			out = append(out, w.machineOf(rm.Pool))
		}
	}
	return slices.Clip(out)
}
