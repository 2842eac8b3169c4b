package store

import (
	"errors"
	"math/rand/v2"
	"syscall"
	"testing"

	"samovar/internal/fault"
	"samovar/internal/store/disk"
	"samovar/internal/store/disk/memory"
	"samovar/internal/volume"
)

const crashSteps = 40

func memoryOptions(seed uint64) memory.Options {
	if seed%3 == 0 {
		return memory.Options{Direct: disk.Limits{Direct: true, Offset: 4096, Memory: 512}, Queue: true}
	}
	return memory.Options{Bare: seed%5 == 0, Queue: true}
}

func crashOptions(seed uint64, backend string) Options { return setup{backend, true}.options(seed) }

// TestCrash runs random operations into a loss of power or the death of the process, several times in a row on
// one disk, and checks after each what is there. Every kind of operation is hit at every one of its calls, over
// the seeds.
func TestCrash(t *testing.T) { eachBackend(t, crashRandomly) }

func crashRandomly(t *testing.T, backend string) {
	seeds := uint64(500)
	if testing.Short() {
		seeds = 200
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 77))
		fsys := memory.New(seed, memoryOptions(seed))
		w := newWorld(t, fsys, "/pool", crashOptions(seed, backend))
		m := newModel()
		for range 3 {
			fsys.CrashAt(fsys.Steps() + 1 + rng.IntN(150))
			for range crashSteps {
				err := m.step(w, rng)
				if err != nil && !errors.Is(err, memory.ErrCrashed) {
					t.Fatalf("seed %d: %v", seed, err)
				}
				if err != nil {
					break
				}
				if rng.IntN(8) == 0 && fsys.Steps() > 0 {
					failf(t, seed, "live", m.verifyLiveUnlessDown(w))
				}
			}
			power := rng.IntN(3) > 0
			if power {
				fsys.Crash()
			} else {
				fsys.Kill()
			}
			failf(t, seed, "open", w.tryOpen())
			failf(t, seed, "after the crash", m.verifyOpened(w, power))
		}
	}
}

// verifyLiveUnlessDown checks reads, unless the disk is gone.
func (m *model) verifyLiveUnlessDown(w *world) error {
	b := constant(512, 0)
	if w.do(&Op{Code: Read, Range: at(0, 512), Buffer: b})[0] != nil {
		return nil
	}
	return m.verifyLive(w)
}

// TestFailedStep lets each changing call of a run fail once, with and without its effect, goes on, and checks
// before and after a loss of power.
func TestFailedStep(t *testing.T) { eachBackend(t, failSteps) }

func failSteps(t *testing.T, backend string) {
	modes := []memory.Fault{
		{Err: syscall.EIO}, {Err: syscall.EIO, Happened: true}, {Err: syscall.ENOSPC}, {Err: syscall.ENOSPC, Happened: true},
	}
	seeds := uint64(2)
	for seed := range seeds {
		for target := 1; ; target++ {
			mode, finished := modes[target%len(modes)], false
			for range 1 + int(seed)%2 {
				finished = failedRun(t, backend, seed, target, mode)
				mode = modes[(target+2)%len(modes)]
			}
			if finished {
				break
			}
		}
	}
}

// failedRun tells whether the run ended before its call number target.
func failedRun(t *testing.T, backend string, seed uint64, target int, mode memory.Fault) (finished bool) {
	rng := rand.New(rand.NewPCG(seed, 99))
	fsys := memory.New(seed*1000+uint64(target), memoryOptions(seed))
	w := newWorld(t, fsys, "/pool", crashOptions(seed, backend))
	m := newModel()
	calls, hit := 0, false
	fsys.Hook(func(c memory.Call) memory.Fault {
		switch c.Op {
		case memory.Read, memory.Space, memory.List, memory.Open:
			return memory.Fault{}
		}
		if calls++; calls == target {
			hit = true
			return mode
		}
		return memory.Fault{}
	})
	for range crashSteps {
		lost := w.replica.SyncLoss() != nil
		err := m.step(w, rng)
		kind := fault.KindOf(err)
		if err != nil && kind != fault.IO && kind != fault.NoSpace {
			t.Fatalf("seed %d target %d: %v", seed, target, err)
		}
		if lost && w.replica.SyncLoss() == nil {
			t.Fatalf("seed %d target %d: the loss is forgotten", seed, target)
		}
		failf(t, seed, "live", m.verifyLive(w))
	}
	fsys.Hook(nil)
	failf(t, seed, "last log change", w.do(&Op{Code: LogChange, Add: []uint64{7}})[0])
	m.required[7], m.ever[7] = true, true
	fsys.Crash()
	failf(t, seed, "open", w.tryOpen())
	failf(t, seed, "after the crash", m.verifyOpened(w, true))
	return !hit
}

// TestCrashOfLife crashes creation, deletion and purging of pools and replicas at each of their calls.
func TestCrashOfLife(t *testing.T) { eachBackend(t, crashLife) }

func crashLife(t *testing.T, backend string) {
	for seed := range uint64(12) {
		for step := 1; ; step++ {
			fsys := memory.New(seed*1000+uint64(step), memory.Options{Queue: true})
			fsys.CrashAt(step)
			done := life(fsys, crashOptions(seed, backend))
			if done == 5 {
				break
			}
			fsys.Crash()
			checkAfterLife(t, backend, fsys, seed, step, done)
		}
	}
}

// life creates a pool and a replica, deletes the replica, purges it; it tells how many steps succeeded.
func life(fsys disk.FS, options Options) int {
	if CreatePool(fsys, "/pool", Identity{Pool: testPool, Cluster: testCluster, Name: "ssd1"}, epochStart) != nil {
		return 0
	}
	p, err := OpenPool(fsys, "/pool", options)
	if err != nil {
		return 1
	}
	if p.CreateReplica(testConfiguration(testVolume, testSize), volume.ReplicaState{CatchingUp: true}, set(0, 128)) != nil {
		return 1
	}
	r, _, err := p.OpenReplica(testVolume)
	if err != nil || r.Close() != nil {
		return 2
	}
	name, err := p.DeleteReplica(testVolume)
	if err != nil {
		return 3
	}
	if p.Purge(name) != nil {
		return 4
	}
	return 5
}

func checkAfterLife(t *testing.T, backend string, fsys *memory.FS, seed uint64, step, done int) {
	t.Helper()
	p, err := OpenPool(fsys, "/pool", crashOptions(seed, backend))
	if done == 0 && fault.Is(err, fault.NotFound) {
		failf(t, seed, "create the pool again",
			CreatePool(fsys, "/pool", Identity{Pool: testPool, Cluster: testCluster, Name: "ssd1"}, epochStart))
		p, err = OpenPool(fsys, "/pool", crashOptions(seed, backend))
	}
	failf(t, seed, "open pool", err)
	info, err := p.Info()
	failf(t, seed, "info", err)
	for _, r := range info.Replicas {
		if r.Fault != nil {
			t.Fatalf("seed %d step %d: a crash left a damaged replica: %v", seed, step, r.Fault)
		}
	}
	for _, l := range info.Leftovers {
		if l.Kind == Unknown {
			t.Fatalf("seed %d step %d: unknown leftover %s", seed, step, l.Name)
		}
	}
	r, stored, err := p.OpenReplica(testVolume)
	switch {
	case err == nil:
		if done > 3 || stored.Missing.Count() != 128 {
			t.Fatalf("seed %d step %d: after %d steps there is a replica: %+v", seed, step, done, stored)
		}
		failf(t, seed, "close", r.Close())
		_, err := p.DeleteReplica(testVolume)
		failf(t, seed, "delete", err)
	case done == 2 || !fault.Is(err, fault.NotFound):
		t.Fatalf("seed %d step %d: after %d steps: %v", seed, step, done, err)
	}
	info, err = p.Info()
	failf(t, seed, "info", err)
	for _, l := range info.Leftovers {
		failf(t, seed, "purge", p.Purge(l.Name))
	}
	failf(t, seed, "create again",
		p.CreateReplica(testConfiguration(testVolume, testSize), volume.ReplicaState{}, nil))
	failf(t, seed, "close", p.Close())
}

// What an opening has found stays, although an earlier process ended before it could make it lasting.
func TestOpenedIsLasting(t *testing.T) { eachBackend(t, openLastingly) }

func openLastingly(t *testing.T, backend string) {
	for seed := range uint64(8) {
		for step := 1; ; step++ {
			fsys := memory.New(seed*1000+uint64(step), memory.Options{Queue: true})
			must(t, fsys.Mkdir("/pool"))
			must(t, fsys.SyncDir("/"))
			fsys.CrashAt(fsys.Steps() + step)
			if life(fsys, crashOptions(seed, backend)) == 5 {
				break
			}
			fsys.Kill()
			p, err := OpenPool(fsys, "/pool", crashOptions(seed, backend))
			if err != nil {
				continue
			}
			if _, _, err = p.OpenReplica(testVolume); err != nil {
				continue
			}
			fsys.Crash()
			p, err = OpenPool(fsys, "/pool", crashOptions(seed, backend))
			failf(t, seed, "open pool again", err)
			_, _, err = p.OpenReplica(testVolume)
			failf(t, seed, "open replica again", err)
		}
	}
}

func TestFailedSyncIsRemembered(t *testing.T) { eachBackend(t, failSyncs) }

func failSyncs(t *testing.T, backend string) {
	for _, mode := range []memory.Fault{{Err: syscall.EIO}, {Err: syscall.EIO, Happened: true}, {Err: syscall.ENOSPC}} {
		fsys := memory.New(1, memory.Options{Queue: true})
		w := newWorld(t, fsys, "/pool", crashOptions(1, backend))
		w.ok(&Op{Code: Write, Range: at(0, 4096), Buffer: constant(4096, 1)})
		fsys.Hook(func(c memory.Call) memory.Fault {
			if c.Op == memory.Sync {
				return mode
			}
			return memory.Fault{}
		})
		wantKind(t, w.do(&Op{Code: Sync})[0], fault.IO)
		fsys.Hook(nil)
		wantKind(t, w.do(&Op{Code: Sync})[0], fault.IO)
		wantKind(t, w.do(&Op{Code: Write, Range: at(0, 512), Buffer: constant(512, 1), FUA: true})[0], fault.IO)
		wantKind(t, w.do(&Op{Code: Zero, Range: at(0, 512), FUA: true})[0], fault.IO)
		info, err := w.pool.Info()
		must(t, err)
		if info.Replicas[0].SyncLoss == nil {
			t.Fatal("the pool does not show the loss")
		}
		w.ok(&Op{Code: Write, Range: at(0, 4096), Buffer: constant(4096, 2)})
		w.replica.AcceptSyncLoss()
		w.ok(&Op{Code: Sync})
		fsys.Crash()
		must(t, w.tryOpen())
		w.wantBytes(0, 4096, 2)
		if w.replica.SyncLoss() != nil {
			t.Fatal("the loss outlives the opening")
		}
	}
}
