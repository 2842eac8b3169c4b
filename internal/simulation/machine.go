package simulation

import (
	"slices"
	"time"

	"samovar/internal/replication/replica"
	"samovar/internal/volume"
)

// machine is a computer: it has a boot-time clock of its own, perhaps a disk with a replica, perhaps engines.
type machine struct {
	w      *World
	index  int
	up     bool
	booted time.Duration // true time at which its clock stood at offset
	offset time.Duration
	rate   float64

	pool     volume.PoolID // zero: no disk
	disk     *disk
	replica  *replicaProcess // nil: not running
	engines  []*engineProcess
	storeCut bool // the cluster store cannot be reached from here
	unopened bool // a replica whose metadata failed stays as it is
}

func (w *World) newMachine(withDisk bool) *machine {
	m := &machine{w: w, index: len(w.machines)}
	w.machines = append(w.machines, m)
	if withDisk {
		m.pool = w.identity()
		m.pool[0] = byte(m.index + 1)
	}
	m.boot()
	return m
}

// boot starts the machine's clock.
func (m *machine) boot() {
	m.up, m.booted = true, m.w.now
	m.offset = m.w.between(0, 1000*time.Second)
	m.rate = 1 + (2*m.w.rng.Float64()-1)*m.w.profile.drift
}

// clock is the time since boot, as this machine measures it.
func (m *machine) clock() time.Duration {
	return m.offset + time.Duration(float64(m.w.now-m.booted)*m.rate)
}

// startReplica opens the replica from what its disk holds.
func (m *machine) startReplica() {
	if m.disk == nil || m.replica != nil || !m.up {
		return
	}
	p := &replicaProcess{process: process{machine: m}, started: m.w.now, sessions: map[replica.Session]*side{}}
	p.incarnation = m.w.identity()
	p.replica = replica.New(m.w.replicaOptions(), m.disk.meta.stored(p.incarnation))
	m.replica = p
	m.w.log("machine %d: replica starts as %x", m.index, p.incarnation[:2])
	p.space()
	p.drain()
}

// stopReplica kills the replica's process.
func (m *machine) stopReplica(power bool) {
	p := m.replica
	if p == nil {
		return
	}
	m.replica = nil
	p.dead = true
	m.w.closeAll(&p.process, power)
}

// restartReplica kills the replica's process and starts it again after a while.
func (m *machine) restartReplica(pause time.Duration) {
	if m.replica == nil {
		return
	}
	m.w.log("machine %d: replica process killed", m.index)
	m.stopReplica(false)
	m.disk.restartProcess()
	m.w.after(pause, m.startReplica)
}

// killEngines kills every engine of the machine.
func (m *machine) killEngines(power bool) {
	for _, e := range slices.Clone(m.engines) {
		e.kill(power)
	}
}

// crash takes the machine down. Without power its disk loses what was not durable; a reboot that flushes keeps it.
func (m *machine) crash(losePower bool) {
	if !m.up {
		return
	}
	m.w.log("machine %d: goes down, power lost %v", m.index, losePower)
	m.up = false
	m.killEngines(true)
	m.stopReplica(true)
	if m.disk != nil {
		if losePower {
			m.disk.losePower()
		} else {
			m.disk.restartProcess()
		}
	}
}

// start brings the machine up again.
func (m *machine) start() {
	if m.up {
		return
	}
	m.w.log("machine %d: comes up", m.index)
	m.boot()
	m.startReplica()
}

// closeAll ends every connection of a dead process.
func (w *World) closeAll(p *process, power bool) {
	for _, c := range w.conns {
		for i := range 2 {
			if c.ends[i].process == p {
				c.die(i, power)
			}
		}
	}
}

// machineOf finds the machine that holds a pool.
func (w *World) machineOf(pool volume.PoolID) *machine {
	for _, m := range w.machines {
		if m.pool == pool {
			return m
		}
	}
	return nil
}
