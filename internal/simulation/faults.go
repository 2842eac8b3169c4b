package simulation

import (
	"slices"
	"time"

	"samovar/internal/volume"
)

// fault kinds, as weights in the profile.
const (
	powerOne = iota
	powerMany
	reboot
	restartOne
	restartMany
	cutBoth
	cutOneWay
	isolate
	hangLink
	breakSession
	stopEngine
	stopReplica
	slowDisk
	fullDisk
	failSync
	failWrite
	failRead
	failMeta
	storeDown
	storeUnsure
	storeCut
	storeRestore
	killEngine
	powerClient
	stealVolume
	detachVolume
	rollBack
	hangDisk
	refuse
	cutCopies
	faultKinds
)

var faultNames = [faultKinds]string{
	powerOne:     "powerOne",
	powerMany:    "powerMany",
	reboot:       "reboot",
	restartOne:   "restartOne",
	restartMany:  "restartMany",
	cutBoth:      "cutBoth",
	cutOneWay:    "cutOneWay",
	isolate:      "isolate",
	hangLink:     "hangLink",
	breakSession: "breakSession",
	stopEngine:   "stopEngine",
	stopReplica:  "stopReplica",
	slowDisk:     "slowDisk",
	fullDisk:     "fullDisk",
	failSync:     "failSync",
	failWrite:    "failWrite",
	failRead:     "failRead",
	failMeta:     "failMeta",
	storeDown:    "storeDown",
	storeUnsure:  "storeUnsure",
	storeCut:     "storeCut",
	storeRestore: "storeRestore",
	killEngine:   "killEngine",
	powerClient:  "powerClient",
	stealVolume:  "stealVolume",
	detachVolume: "detachVolume",
	rollBack:     "rollBack",
	hangDisk:     "hangDisk",
	refuse:       "refuse",
	cutCopies:    "cutCopies",
}

// common faults get a larger share.
var common = [faultKinds]bool{
	powerOne: true, powerMany: true, restartOne: true, cutBoth: true, cutOneWay: true, breakSession: true,
	stealVolume: true, killEngine: true, isolate: true, hangDisk: true,
}

// faults injects trouble until the world is calm.
type faults struct {
	w     *World
	total float64
	hold  bool // nothing new for now
}

func newFaults(w *World) *faults {
	f := &faults{w: w}
	for _, x := range w.profile.weight {
		f.total += x
	}
	return f
}

// next plans the next fault.
func (f *faults) next() {
	w := f.w
	w.after(w.around(w.profile.pause), func() {
		if w.calm {
			return
		}
		if kind := f.pick(); !w.store.restored && !f.hold && w.config.Skip>>max(kind, 0)&1 == 0 {
			f.inject(kind)
		}
		f.next()
	})
}

func (f *faults) pick() int {
	x := f.w.rng.Float64() * f.total
	for k, weight := range f.w.profile.weight {
		if x -= weight; x < 0 && weight > 0 {
			return k
		}
	}
	return -1
}

// ambush strikes at a moment when much is half done: a replica begins to catch up, has joined or left, an engine has
// begun to serve. The replica, the engine, or both go down soon after.
func (f *faults) ambush(p *engineProcess, pool volume.PoolID) {
	w := f.w
	if w.calm || !w.chance(w.profile.ambush) {
		return
	}
	m, soon := w.machineOf(pool), w.between(0, 60*time.Millisecond)
	if m == nil || w.chance(0.3) {
		m = w.machines[w.rng.IntN(w.profile.replicas)]
	}
	which, power := 1+w.rng.IntN(3), w.chance(0.7)
	w.after(soon, func() {
		if w.calm || w.store.restored || f.hold {
			return
		}
		if w.tracing() {
			w.log("fault: ambush on engine %d and replica %d: %d", p.number, m.index, which)
		}
		w.stats.Faults++
		if which&1 != 0 {
			m.crash(power)
			f.later(20*time.Millisecond, second, m.start)
		}
		if which&2 != 0 {
			p.kill(power)
		}
	})
}

// later undoes a fault after a while; a calm world has undone everything already.
func (f *faults) later(lo, hi time.Duration, undo func()) {
	w := f.w
	d := w.between(lo, hi)
	if w.chance(0.15) {
		d *= 4
	}
	w.after(d, func() {
		if !w.calm {
			undo()
		}
	})
}

const (
	tenth  = 100 * time.Millisecond
	second = time.Second
)

func (f *faults) inject(kind int) {
	w := f.w
	if kind < 0 {
		return
	}
	w.stats.Faults++
	a, b := w.machines[w.rng.IntN(len(w.machines))], w.machines[w.rng.IntN(len(w.machines))]
	m := w.machines[w.rng.IntN(w.profile.replicas)]
	if w.tracing() {
		w.log("fault: %s on %d, %d, %d", faultNames[kind], a.index, b.index, m.index)
	}
	switch kind {
	case powerOne, powerMany, reboot, restartOne, restartMany, powerClient:
		f.crash(kind, m)
	case cutBoth, cutOneWay, isolate, hangLink:
		f.network(kind, a, b)
	case breakSession:
		for range 1 + w.rng.IntN(3) {
			if len(w.conns) > 0 {
				c := w.conns[w.rng.IntN(len(w.conns))]
				c.breakEnd(w.rng.IntN(2))
				c.breakLater(0)
				c.breakLater(1)
			}
		}
	case stopEngine, stopReplica:
		f.stop(kind, m)
	case slowDisk, fullDisk, failSync, failWrite, failRead, failMeta:
		f.disk(kind, m.disk)
	case storeDown, storeUnsure, storeCut, storeRestore:
		f.store(kind, a)
	case rollBack:
		f.rollBack(m)
	case hangDisk, refuse, cutCopies:
		f.lasting(kind, m)
	default:
		f.engines(kind)
	}
}

func (f *faults) crash(kind int, m *machine) {
	w := f.w
	down := func(m *machine, power bool) {
		m.crash(power)
		f.later(20*time.Millisecond, 3*second, m.start)
	}
	switch kind {
	case powerOne:
		down(m, true)
	case powerMany:
		all := w.chance(0.5)
		for _, m := range w.machines[:w.profile.replicas] {
			if all || w.chance(0.5) {
				down(m, true)
			}
		}
	case reboot:
		down(m, false)
	case restartOne:
		m.restartReplica(w.between(time.Millisecond, tenth))
	case restartMany:
		for _, m := range w.machines[:w.profile.replicas] {
			if w.chance(0.7) {
				m.restartReplica(w.between(time.Millisecond, second))
			}
		}
	case powerClient:
		down(w.machines[w.profile.replicas+w.rng.IntN(w.profile.clients)], true)
	}
}

func (f *faults) network(kind int, a, b *machine) {
	w := f.w
	set := func(a, b *machine, l link) {
		if a == b {
			return
		}
		w.setLink(a, b, l)
		f.later(tenth, 4*second, func() { w.setLink(a, b, link{}) })
	}
	switch kind {
	case cutBoth:
		set(a, b, link{cut: true})
		set(b, a, link{cut: true})
	case cutOneWay:
		set(a, b, link{cut: true})
	case isolate:
		way := w.rng.IntN(3)
		for _, o := range w.machines {
			if way != 0 {
				set(a, o, link{cut: true})
			}
			if way != 1 {
				set(o, a, link{cut: true})
			}
		}
	case hangLink:
		set(a, b, link{slow: w.between(5*time.Millisecond, 2*second)})
		if w.chance(0.5) {
			set(b, a, link{slow: w.between(5*time.Millisecond, 2*second)})
		}
	}
}

func (f *faults) stop(kind int, m *machine) {
	w := f.w
	if kind == stopReplica {
		if p := m.replica; p != nil && !p.stopped {
			p.stopped = true
			w.log("machine %d: replica stopped", m.index)
			f.later(tenth, 4*second, p.resume)
		}
		return
	}
	for _, m := range w.machines {
		for _, p := range m.engines {
			if !p.stopped && w.chance(0.7) {
				p.stopped = true
				w.log("engine %d: stopped", p.number)
				f.later(tenth, 6*second, p.resume)
			}
		}
	}
}

func (f *faults) disk(kind int, d *disk) {
	w := f.w
	chance := 0.05 + 0.95*w.rng.Float64()
	set := func(field *float64, value, normal float64) {
		*field = value
		f.later(tenth, 2*second, func() { *field = normal })
	}
	switch kind {
	case slowDisk:
		set(&d.slow, 3+100*w.rng.Float64(), 1)
	case fullDisk:
		d.space.fill(w.rng.Uint64N(2 << 20))
		f.later(second, 4*second, func() { d.space.capacity = 4 * d.cached.size })
	case failSync:
		set(&d.syncFails, chance, 0)
	case failWrite:
		set(&d.writeFail, chance/4, 0)
	case failRead:
		set(&d.readFails, chance/2, 0)
	case failMeta:
		set(&d.metaFails, chance/4, 0)
	}
}

// lasting injects what an engine must live with: some of it lasts until the faults stop.
func (f *faults) lasting(kind int, m *machine) {
	w := f.w
	forGood := w.chance(0.3)
	undo := func() {}
	switch kind {
	case hangDisk:
		m.disk.hangSome()
		undo = m.disk.letGo
	case refuse:
		m.refuseAll()
		undo = m.reopen
	case cutCopies:
		if o := w.machines[w.rng.IntN(w.profile.replicas)]; o != m {
			w.cutCopies(m, o)
		}
		return
	}
	if !forGood {
		f.later(second, 6*second, undo)
	}
}

// inFullCopy ends an engine while it copies everything to a replica.
func (f *faults) inFullCopy(p *engineProcess) {
	w := f.w
	if w.calm || !w.chance(w.profile.fullRestart) {
		return
	}
	w.after(w.around(300*time.Millisecond), func() {
		if !w.calm && !w.store.restored && !f.hold {
			w.log("fault: engine %d ends during a full copy", p.number)
			w.stats.Faults++
			p.kill(w.chance(0.3))
		}
	})
}

func (f *faults) store(kind int, m *machine) {
	w, s := f.w, f.w.store
	switch kind {
	case storeDown:
		s.down = true
		f.later(tenth, 3*second, func() { s.down = false })
	case storeUnsure:
		s.unsure = 0.1 + 0.8*w.rng.Float64()
		if w.config.Late && w.chance(0.3) {
			s.late = 0.3 * w.rng.Float64()
		}
		f.later(second, 5*second, func() { s.unsure, s.late = 0, 0 })
	case storeCut:
		m.storeCut = true
		f.later(tenth, 5*second, func() { m.storeCut = false })
	case storeRestore:
		if w.config.Restore && w.chance(0.3) {
			f.restoreStore()
		}
	}
}

// restoreStore puts an old copy of the cluster store back while every replica can be reached and answers in time: one
// that cannot be asked cannot warn that the copy is old.
func (f *faults) restoreStore() {
	w := f.w
	f.heal()
	f.hold = true
	w.after(3*second, func() {
		f.hold = false
		if w.calm {
			return
		}
		for _, m := range w.machines {
			if m.disk != nil && (m.replica == nil || m.replica.stopped || m.replica.replica.Failed()) {
				return
			}
		}
		w.store.restore()
		f.later(second, 4*second, w.control.operate)
	})
}

// rollBack keeps a copy of a disk, and puts one back that is older than the generation in which the replica was last
// in-sync: a machine restored from a snapshot (rule 14). There must be somebody else to recover from. A copy that has
// prepared that generation cannot be told from a replica that crashed before it could accept it: a limit of the design.
func (f *faults) rollBack(m *machine) {
	w, d := f.w, m.disk
	old := d.snapshot
	if old == nil {
		d.snapshot = d.copy()
		return
	}
	member, _ := w.store.current.Member(m.pool)
	last := member.Last
	if member.InSync {
		last = w.store.current.Generation
	}
	others := 0
	for _, o := range w.store.inSync() {
		if o != m && w.truth.whole[o.index] {
			others++
		}
	}
	if known := old.meta.state; others == 0 || max(known.Accepted.Generation, known.Prepared) >= last {
		return
	}
	for _, o := range w.machines {
		for _, p := range slices.Clone(o.engines) {
			if p.epoch != w.store.current.Epoch {
				p.kill(true) // the fence against it is rolled back as well: a limit of the design
			}
		}
	}
	w.log("machine %d: rolled back to generation %d", m.index, old.meta.state.Accepted.Generation)
	m.crash(true)
	d.putBack(old)
	d.snapshot = nil
	w.stats.RolledBack++
	w.truth.broke(m, "rolled back", true)
	f.later(20*time.Millisecond, 2*second, m.start)
}

func (f *faults) engines(kind int) {
	w := f.w
	switch kind {
	case killEngine:
		for _, m := range w.machines {
			if len(m.engines) > 0 && w.chance(0.7) {
				m.engines[0].kill(w.chance(0.3))
			}
		}
	case stealVolume:
		w.control.attachSomewhere()
	case detachVolume:
		for _, m := range w.machines {
			for _, p := range m.engines {
				p.detach()
			}
		}
	}
}

// heal takes every fault back.
func (f *faults) heal() {
	f.healPassing()
	clear(f.w.copyCuts)
	for _, m := range f.w.machines[:f.w.profile.replicas] {
		m.disk.letGo()
		m.reopen()
	}
}

// healPassing takes back all but what an engine must live with.
func (f *faults) healPassing() {
	w := f.w
	w.store.down, w.store.unsure, w.store.late = false, 0, 0
	for _, a := range w.machines {
		a.storeCut = false
		for _, b := range w.machines {
			w.setLink(a, b, link{})
		}
		if d := a.disk; d != nil {
			d.slow, d.readFails, d.writeFail, d.syncFails = 1, 0, 0, 0
			if !a.unopened {
				d.metaFails = 0
			}
			d.space.capacity = 4 * d.cached.size
		}
		a.start()
		a.startReplica()
		if a.replica != nil {
			a.replica.resume()
			a.replica.space()
		}
		for i := 0; i < len(a.engines); i++ {
			a.engines[i].resume()
		}
	}
}
