// Package simulation runs the replication core in a world of its own: many engines and replicas with a fake
// network, disks, clocks and a fake cluster store, under faults, from one seed. The same seed gives the same world.
//
//	seed ─> profile ─> World: machines (clock, disk, replica, engines), links, store, faults, clients
//	                     │ then, in some worlds: only faults that must be endured, and requests go on
//	                     │ after the faults: calm, all in-sync, read everything, detach, compare, each one alone
//	                     └ checkers at every step: register (histories), truth (excused losses), record, fences
//
// A sector holds the stamp of the write that it came from; images of disks and histories are maps of runs of equal
// sectors, so that a volume of any size costs what its requests cost.
//
// The package drives the real state machines of the packages engine and replica. It must not know how they work:
// whatever it checks is in the rules or in the contract of their actions.
package simulation

import (
	"fmt"
	"io"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"samovar/internal/fault"
	"samovar/internal/replication"
	"samovar/internal/replication/engine"
	"samovar/internal/volume"
)

// Config says what to run beside the seed.
type Config struct {
	Bugs    replication.Bugs // planted mistakes
	Trace   io.Writer        // nil: none
	Late    bool             // proposals whose answer was lost may be applied later
	Restore bool             // the cluster store may be restored from an old copy
	// CheckLog holds replicas to rule 13 at each write instead of waiting for the damage to show.
	CheckLog bool
	Skip     uint64 // fault kinds to leave out, as bits, when looking for a cause
}

// Standard is what tests run.
func Standard() Config { return Config{Late: true, Restore: true} }

// Stats counts what happened in a run.
type Stats struct {
	Requests, Successes, Errors, NoSpace int
	Faults, Attachments, Served          int
	Lossy, Excused, Joins, Removals      int
	FalseAlarms                          int // losses reported though nothing was lost
	Suspensions, RolledBack              int
	CatchUps, FullCopies                 int     // how often a replica had to catch up, and with everything
	Endured                              int     // worlds in which I/O had to go on beside a fault
	MostSyncs, MostSyncsAtOnce           int     // of one replica, within a second and a moment
	Ended                                [32]int // by reason
}

// Result is the outcome of one seed.
type Result struct {
	Seed   uint64
	Broken string // the rule that was seen broken, or empty
	Hash   uint64 // of all that happened
	Events uint64
	Time   time.Duration // of the world
	Stats  Stats
}

// Run lives one world from its seed to its end.
func Run(seed uint64, c Config) (res Result) {
	w := &World{rng: rand.New(rand.NewPCG(seed, 0x5a110ca7)), config: c, trace: c.Trace}
	res.Seed = seed
	defer func() {
		if p := recover(); p != nil {
			w.broken = fmt.Sprintf("panic: %v\n%s", p, debug.Stack())
		}
		res.Broken, res.Hash, res.Events, res.Time, res.Stats = w.broken, w.hash, w.events, w.now, w.stats
	}()
	w.build()
	w.live()
	return res
}

// build makes the world as it is when a volume has just been created: empty and in-sync everywhere.
func (w *World) build() {
	w.profile = w.draw()
	p := &w.profile
	w.now = time.Second
	w.volume = w.identity()
	for i := range p.replicas + p.clients {
		w.newMachine(i < p.replicas)
	}
	w.links, w.copyCuts = make([][]link, len(w.machines)), map[[2]int]bool{}
	for i := range w.links {
		w.links[i] = make([]link, len(w.machines))
	}
	record := volume.Configuration{
		Volume: w.volume, Name: "v", Size: p.size, Layout: volume.Mirrored(p.size, p.extent), Protocol: "C",
		Generation: 1, GenerationID: w.identity(), Groups: make([]volume.Group, 1),
	}
	for _, m := range w.machines[:p.replicas] {
		record.Groups[0].Members = append(record.Groups[0].Members, volume.Member{Pool: m.pool, InSync: true})
	}
	w.register = newRegister(w, p.size)
	w.store = newStore(w, record)
	w.truth = newTruth(w)
	w.control = &control{w: w}
	w.faults = newFaults(w)
	for _, m := range w.machines[:p.replicas] {
		m.disk = newDisk(w, m, p.size)
		if p.space {
			m.disk.space.on = true
			m.disk.space.slice = 64<<10 + w.rng.Uint64N(64<<20)
		}
		m.disk.meta.state = volume.ReplicaState{
			Volume: w.volume, Pool: m.pool, Accepted: w.store.current.Clone(),
			History: []volume.GenerationID{record.GenerationID},
		}
		m.disk.meta.state.Accepted.Revision = 0
		m.startReplica()
	}
	w.log("profile: %+v", *p)
}

// live runs the faults, then the calm and the end.
func (w *World) live() {
	w.control.run()
	w.faults.next()
	w.runUntil(w.profile.length, func() bool { return false })
	if w.broken == "" {
		w.endure()
	}
	if w.broken == "" {
		w.finale()
	}
}

// serving gives the engine that serves now and owns the record.
func (w *World) serving() *engineProcess {
	for _, m := range w.machines {
		for _, p := range m.engines {
			if p.phase == engine.Serving && p.epoch == w.store.current.Epoch && !p.detaching {
				return p
			}
		}
	}
	return nil
}

// endText names how engines ended, for people.
func (s *Stats) endText() string {
	text := ""
	for k, n := range s.Ended {
		if n > 0 {
			text += fmt.Sprintf(" %v:%d", fault.Kind(k), n)
		}
	}
	return text
}
