package simulation

import (
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	seeds = flag.Uint64("sim.seeds", 6000, "how many worlds TestSeeds runs")
	base  = flag.Uint64("sim.base", 1, "the first seed of TestSeeds")
	seed  = flag.Uint64("sim.seed", 0, "run only this seed")
	trace = flag.Bool("sim.trace", false, "print everything that happens, with one seed")
	skip  = flag.Uint64("sim.skip", 0, "kinds of faults to leave out, as bits")
	log   = flag.Bool("sim.log", false, "check rule 13 at every write")
)

func config() Config {
	c := Standard()
	c.CheckLog, c.Skip, c.Bugs = *log, *skip, plant(*bugs)
	return c
}

// replay is the command that shows a failure again.
func replay(seed uint64) string { return fmt.Sprintf("make sim SEEDS=1 SEED_BASE=%d", seed) }

// sweep runs seeds on all processors until f says stop. Failures come in no order.
func sweep(base, count uint64, run func(seed uint64) Result, f func(Result) (goOn bool)) {
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // worlds are small and short
	var next atomic.Uint64
	var stop atomic.Bool
	var mu sync.Mutex
	var group sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		group.Go(func() {
			for !stop.Load() {
				n := next.Add(1) - 1
				if n >= count {
					return
				}
				res := run(base + n)
				mu.Lock()
				if !f(res) {
					stop.Store(true)
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
}

// TestSeeds runs a fixed set of worlds. A failure names its seed, and the seed replays it.
func TestSeeds(t *testing.T) {
	if *seeds == 1 {
		*seed = *base
	}
	if *seed != 0 {
		c := config()
		if *trace {
			c.Trace = os.Stdout
		}
		if res := Run(*seed, c); res.Broken != "" {
			t.Fatalf("seed %d: %s\nreplay: %s", *seed, res.Broken, replay(*seed))
		}
		return
	}
	count := *seeds
	if testing.Short() {
		count = min(count, 200)
	}
	begun, total, events, bad := time.Now(), Stats{}, uint64(0), 0
	sweep(*base, count, func(seed uint64) Result { return Run(seed, config()) }, func(r Result) bool {
		total.add(r.Stats)
		events += r.Events
		if r.Broken != "" {
			bad++
			t.Errorf("seed %d: %s\nreplay: %s", r.Seed, r.Broken, replay(r.Seed))
		}
		return bad < 10
	})
	t.Logf("%d seeds, %.0f a second, %d events; requests %d ok %d failed %d, no space %d; faults %d, attachments %d, served %d; joins %d, removals %d; lossy %d (%d false alarms), excused %d, rolled back %d; catch-ups %d, of everything %d; endured %d; most syncs in a second %d, at once %d; ends:%s",
		count, float64(count)/time.Since(begun).Seconds(), events, total.Requests, total.Successes, total.Errors, total.NoSpace,
		total.Faults, total.Attachments, total.Served, total.Joins, total.Removals, total.Lossy, total.FalseAlarms, total.Excused, total.RolledBack, total.CatchUps, total.FullCopies, total.Endured,
		total.MostSyncs, total.MostSyncsAtOnce, total.endText())
}

func (s *Stats) add(o Stats) {
	s.Requests += o.Requests
	s.Successes += o.Successes
	s.Errors += o.Errors
	s.NoSpace += o.NoSpace
	s.Faults += o.Faults
	s.Attachments += o.Attachments
	s.Served += o.Served
	s.Lossy += o.Lossy
	s.FalseAlarms += o.FalseAlarms
	s.Excused += o.Excused
	s.Joins += o.Joins
	s.Removals += o.Removals
	s.Suspensions += o.Suspensions
	s.RolledBack += o.RolledBack
	s.CatchUps += o.CatchUps
	s.FullCopies += o.FullCopies
	s.Endured += o.Endured
	s.MostSyncs = max(s.MostSyncs, o.MostSyncs)
	s.MostSyncsAtOnce = max(s.MostSyncsAtOnce, o.MostSyncsAtOnce)
	for k, n := range o.Ended {
		s.Ended[k] += n
	}
}

// The same seed gives the same world, also while it is traced.
func TestSameSeedSameWorld(t *testing.T) {
	for seed := uint64(1); seed <= 40; seed++ {
		c := config()
		a := Run(seed, c)
		c.Trace = io.Discard
		b := Run(seed, c)
		if a.Hash != b.Hash || a.Events != b.Events {
			t.Fatalf("seed %d: two runs differ: %x after %d events, %x after %d", seed, a.Hash, a.Events, b.Hash, b.Events)
		}
	}
}
