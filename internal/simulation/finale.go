package simulation

import (
	"fmt"
	"strings"
	"time"

	"samovar/internal/fault"
	"samovar/internal/replication"
	"samovar/internal/replication/engine"
	"samovar/internal/volume"
)

// patience is how long a world without faults may take for each step to health.
const patience = 90 * time.Second

// finale ends a run: the faults stop, everything must come back by itself, and nothing may be missing.
func (w *World) finale() {
	w.log("the faults stop")
	w.calm = true
	w.faults.heal()
	w.control.operate()
	w.profile.think = max(w.profile.think, 150*time.Millisecond) // no need to hurry any more
	w.runUntil(5*time.Second, func() bool { return false })      // late proposals of dead engines come through or fail
	for tries := 0; ; tries++ {
		p := w.flushed()
		if p == nil || !w.readAll(p) || !w.rest(p) {
			return
		}
		if w.complete() {
			break
		}
		// A straggler was dropped for its slowness at the last moment.
		if tries == 5 {
			w.fail("liveness: replicas leave again and again without any fault")
			return
		}
		w.control.off = false
	}
	w.compare()
	w.soleSurvivors()
}

// complete tells whether the record names every replica in-sync.
func (w *World) complete() bool {
	for _, m := range w.store.current.Groups[0].Members {
		if !m.InSync {
			return false
		}
	}
	return true
}

// recover waits until every replica is in-sync, an engine serves, and requests move on.
func (w *World) recover() *engineProcess {
	var p *engineProcess
	healthy := func() bool {
		p = w.serving()
		return p != nil && w.healthy(p)
	}
	if !w.runUntil(patience, healthy) {
		w.stuck("not healthy again")
		return nil
	}
	if !w.runUntil(patience, w.moving(&p)) {
		w.stuck("requests do not move on")
		return nil
	}
	if !w.runUntil(patience, healthy) {
		w.stuck("not healthy for long")
		return nil
	}
	return p
}

// moving tells, from now on, whether all requests that were submitted before now have ended, and twenty have succeeded
// since. It follows the volume from one engine to the next.
func (w *World) moving(p **engineProcess) func() bool {
	begun, goal := w.now, w.stats.Successes+20
	return func() bool {
		if *p == nil || (*p).dead {
			*p = w.serving()
		}
		if *p == nil || w.stats.Successes < goal {
			return false
		}
		order := (*p).client.order
		return len(order) == 0 || order[0].begun > begun
	}
}

// healthy tells whether an engine has every replica in-sync, connected and equal.
func (w *World) healthy(p *engineProcess) bool {
	if len(w.store.inSync()) != w.profile.replicas {
		return false
	}
	st := p.engine.Status()
	for _, ms := range st.Members {
		if !ms.InSync || !ms.Connected || ms.State != "in-sync" {
			return false
		}
	}
	return st.Doubtful == 0
}

// stuck reports that the world does not move, and what each engine says.
func (w *World) stuck(what string) {
	if w.broken != "" {
		return
	}
	var b strings.Builder
	fmt.Fprintf(&b, "liveness: %s; record %s", what, recordText(w.store.current))
	for _, m := range w.machines {
		if m.disk != nil && m.replica == nil {
			fmt.Fprintf(&b, "; replica %d does not run", m.index)
		}
		for _, p := range m.engines {
			st := p.engine.Status()
			fmt.Fprintf(&b, "; engine %d %v suspended %q doubtful %d pending %d", p.number, st.Phase, st.Suspended, st.Doubtful,
				len(p.client.order))
			if len(p.client.order) > 0 {
				q := p.client.order[0]
				fmt.Fprintf(&b, " (oldest: %s %d since %.3f)", kindNames[q.Op], q.ID, q.begun.Seconds())
			}
			for _, ms := range st.Members {
				fmt.Fprintf(&b, " [%d %s in-sync %v connected %v lacks %d %s]", ms.Pool[0], ms.State, ms.InSync, ms.Connected,
					ms.OutOfSync, ms.Cause)
			}
		}
	}
	w.fail("%s", b.String())
}

// flushed waits for health and for a sync that succeeds. After the last in-sync replica has lost writes, syncs fail
// until the volume is attached anew; the operator does that.
func (w *World) flushed() *engineProcess {
	for range 5 {
		p := w.recover()
		if p == nil {
			return nil
		}
		p.client.quiet = true
		if !w.runUntil(patience, func() bool { return p.dead || len(p.client.order) == 0 }) {
			w.stuck("the last requests do not end")
			return nil
		}
		if w.ask(p, []*request{{Request: engine.Request{Op: replication.Sync}}}) == fault.None {
			return p
		}
		p.detach()
		if !w.runUntil(patience, func() bool { return p.dead }) {
			w.stuck("an engine whose syncs fail does not detach")
			return nil
		}
	}
	w.fail("liveness: syncs fail again and again without any fault")
	return nil
}

// ask puts requests to an engine and waits for all answers; it gives the last one that is not a success.
func (w *World) ask(p *engineProcess, requests []*request) (bad fault.Kind) {
	ended := 0
	for _, q := range requests {
		q.done = func(status fault.Kind) {
			ended++
			if status != fault.None {
				bad = status
			}
		}
	}
	p.deliver(func() { p.client.submit(requests) })
	if !w.runUntil(patience, func() bool { return p.dead || ended == len(requests) }) {
		w.stuck("requests without any fault do not end")
	}
	if p.dead && bad == fault.None {
		bad = fault.Aborted
	}
	return bad
}

// readAll reads the whole volume through the engine.
func (w *World) readAll(p *engineProcess) bool {
	p.client.quiet = true
	if !w.runUntil(patience, func() bool { return p.dead || len(p.client.order) == 0 }) {
		w.stuck("the last requests do not end")
		return false
	}
	var requests []*request
	for at := uint64(0); at < w.profile.size; at += volume.MaxRequest {
		requests = append(requests, &request{Request: engine.Request{
			Op: replication.Read, Range: volume.Range{Offset: at, Length: min(volume.MaxRequest, w.profile.size-at)},
		}})
	}
	if bad := w.ask(p, requests); bad != fault.None {
		w.fail("liveness: engine %d failed reads (%v) or ended (%v) without any fault", p.number, bad, p.reason)
	}
	return w.broken == ""
}

// rest detaches the volume. A detach that fails because a flush fails is followed by another attachment.
func (w *World) rest(p *engineProcess) bool {
	w.control.off = true
	for _, m := range w.machines {
		for i := len(m.engines) - 1; i >= 0; i-- {
			if m.engines[i] != p {
				m.engines[i].kill(false)
			}
		}
	}
	p.detach()
	if !w.runUntil(patience, func() bool { return p.dead }) {
		w.stuck("the volume does not detach")
		return false
	}
	late := w.store.current.Epoch != p.epoch // a claim of an engine that is dead came through
	if p.reason != fault.None || w.store.current.Engine != (volume.EngineID{}) && !late {
		w.fail("liveness: engine %d was told to detach and ended with %v: %s", p.number, p.reason, recordText(w.store.current))
		return false
	}
	over := w.now + time.Second // the last messages are still on their way
	if !w.runUntil(patience, func() bool { return w.now >= over && w.idle() }) {
		w.stuck("replicas find no rest")
		return false
	}
	return true
}

// idle tells whether no replica has anything under way.
func (w *World) idle() bool {
	for _, m := range w.machines {
		if m.disk != nil && (len(m.disk.flight) > 0 || m.disk.meta.changing()) {
			return false
		}
	}
	return true
}

// compare: at rest all replicas are identical, and durably so.
func (w *World) compare() {
	first := w.machines[0].disk
	for _, m := range w.machines[:w.profile.replicas] {
		if at, a, b, differ := first.cached.difference(m.disk.cached); differ {
			w.fail("at rest replica 0 has #%d at %d, replica %d has #%d", a, at, m.index, b)
		}
		if at, a, b, differ := m.disk.cached.difference(m.disk.durable); differ && len(m.disk.unsynced) > 0 {
			w.fail("at rest replica %d has #%d at %d in its cache, #%d on its medium", m.index, a, at, b)
		} else if differ {
			w.fail("at rest replica %d shows #%d at %d, but its medium holds #%d and nothing will write it", m.index, a, at, b)
		}
	}
}

// soleSurvivors attaches the volume with each replica alone: it must hold everything.
func (w *World) soleSurvivors() {
	var disks []*snapshot
	for _, m := range w.machines[:w.profile.replicas] {
		disks = append(disks, m.disk.copy())
	}
	record, client := w.store.current.Clone(), w.machines[len(w.machines)-1]
	for i, only := range w.machines[:w.profile.replicas] {
		if w.broken != "" {
			return
		}
		w.log("replica %d alone", i)
		for j, m := range w.machines {
			m.crash(true)
			if m.disk != nil {
				m.disk.putBack(disks[j])
			}
		}
		w.store.put(record)
		only.start()
		client.start()
		w.control.off = false
		var p *engineProcess
		w.control.attachOn(client, func(e *engineProcess) { p, w.control.off = e, true })
		if !w.runUntil(patience, func() bool { return p != nil && p.phase == engine.Serving }) {
			w.stuck(fmt.Sprintf("replica %d alone cannot be attached", i))
			return
		}
		if p.lossy {
			w.fail("replica %d alone: reported lossy after a clean detach", i)
		}
		if !w.readAll(p) {
			return
		}
		p.kill(false)
	}
}
