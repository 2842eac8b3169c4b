package simulation

import (
	"time"

	"samovar/internal/replication/replica"
)

// hangs tells whether operations of a kind do not end now. Whoever asks other things of the disk gets them.
func (d *disk) hangs(op replica.DiskOp) bool { return d.hung[op] }

// park keeps the end of an operation until the disk lets go.
func (d *disk) park(end func()) { d.parked = append(d.parked, end) }

// hangSome makes some kinds of operation hang: mostly one, so that everything else looks well.
func (d *disk) hangSome() {
	w := d.w
	for range 1 + w.rng.IntN(2)*w.rng.IntN(3) {
		d.hung[1+w.rng.IntN(len(d.hung)-1)] = true
	}
	for op, hung := range d.hung {
		if hung && w.tracing() {
			w.log("disk %d: %s hangs", d.machine.index, opName(replica.DiskOp(op)))
		}
	}
}

// letGo ends what hangs, in any order.
func (d *disk) letGo() {
	d.hung = [len(d.hung)]bool{}
	parked := d.parked
	d.parked = nil
	for _, end := range parked {
		d.w.after(d.w.between(0, 5*time.Millisecond), end)
	}
}

// afflicted tells whether a fault that others have to bear with keeps this replica from its work.
func (m *machine) afflicted() bool { return m.unopened || m.disk.hung != [len(m.disk.hung)]bool{} }

// refuseAll makes the metadata of a replica fail, and nobody opens it again: it goes on to answer, with refusals.
func (m *machine) refuseAll() {
	m.disk.metaFails, m.unopened = 1, true
	m.w.log("machine %d: metadata fails, and nobody looks after it", m.index)
}

// reopen ends that.
func (m *machine) reopen() {
	if !m.unopened {
		return
	}
	m.disk.metaFails, m.unopened = 0, false
	if m.replica != nil && m.replica.replica.Failed() {
		m.restartReplica(m.w.between(0, 200*time.Millisecond))
	}
}

// storm counts the syncs that a replica asks of its medium. Each has a cause: a client's flush, a filling log, time.
type storm struct {
	moment, second   time.Duration
	atOnce, together int
}

// What no cause explains: syncs at one moment, and within one second. A sound core stays below half of it in 100,000
// worlds; one that answers each NeedSync with a sync does not in 2,000.
const (
	syncsAtOnce   = 50
	syncsTogether = 120
)

func (d *disk) countSync() {
	w, s := d.w, &d.storm
	if s.moment != w.now {
		s.moment, s.atOnce = w.now, 0
	}
	if second := w.now / time.Second; s.second != second {
		s.second, s.together = second, 0
	}
	s.atOnce++
	s.together++
	w.stats.MostSyncs = max(w.stats.MostSyncs, s.together)
	w.stats.MostSyncsAtOnce = max(w.stats.MostSyncsAtOnce, s.atOnce)
	if s.atOnce > syncsAtOnce || s.together > syncsTogether {
		w.fail("replica %d was asked for %d syncs at once, %d within a second", d.machine.index, s.atOnce, s.together)
	}
}
