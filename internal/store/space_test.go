package store

import (
	"bytes"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"samovar/internal/fault"
	"samovar/internal/store/disk"
	"samovar/internal/store/disk/memory"
	"samovar/internal/volume"
)

// The disk fills up at any moment of a run: what fails says so, nothing that was acknowledged is lost, and when
// there is space again everything works.
func TestFullDisk(t *testing.T) {
	for seed := range uint64(150) {
		rng := rand.New(rand.NewPCG(seed, 3))
		fsys := memory.New(seed, memory.Options{Bare: seed%2 == 0})
		w := newWorld(t, fsys, "/pool", testOptions(seed))
		m := newModel()
		for step := range 60 {
			if step == 5 {
				fsys.SetCapacity(fsys.Used() + rng.Int64N(20)*4096)
			}
			err := m.step(w, rng)
			if err != nil && (step < 5 || !fault.Is(err, fault.NoSpace)) {
				t.Fatalf("seed %d step %d: %v", seed, step, err)
			}
			failf(t, seed, "live", m.verifyLive(w))
		}
		if rng.IntN(2) == 0 {
			fsys.Crash()
		} else {
			fsys.Kill()
		}
		failf(t, seed, "open on a full disk", w.tryOpen())
		failf(t, seed, "after the crash", m.verifyOpened(w, false))
		fsys.SetCapacity(0)
		for range 20 {
			failf(t, seed, "with space again", m.step(w, rng))
		}
		w.reopen()
		failf(t, seed, "at the end", m.verifyOpened(w, false))
	}
}

// A replica must be able to save its state on a disk that others filled.
func TestSpare(t *testing.T) {
	fsys := memory.New(1, memory.Options{})
	w := newWorld(t, fsys, "/pool", testOptions(1))
	fsys.SetCapacity(fsys.Used())
	wantKind(t, w.do(&Op{Code: Write, Range: at(0, 4096), Buffer: constant(4096, 1)})[0], fault.NoSpace)
	wantKind(t, w.do(&Op{Code: Reserve, Range: at(0, 4096)})[0], fault.NoSpace)
	wantKind(t, w.pool.CreateReplica(testConfiguration(otherVolume, 1<<20), volume.ReplicaState{}, nil), fault.NoSpace)
	w.ok(&Op{Code: Zero, Range: at(512, 9000*512), Punch: true}) // giving back needs nothing
	w.ok(&Op{Code: SaveState, State: testState(testVolume, testSize, 5)},
		&Op{Code: SaveRecord, Record: &volume.ChangeRecord{Pool: otherPool, Start: 1, Blocks: set(0, 3)}})
	info, err := w.pool.Info()
	must(t, err)
	if !info.SpareSpent {
		t.Fatal("the spare was not used")
	}
	fsys.SetCapacity(fsys.Used() + 1<<20)
	w.ok(&Op{Code: SaveState, State: testState(testVolume, testSize, 6)})
	if info, err = w.pool.Info(); err != nil || info.SpareSpent {
		t.Fatalf("the spare was not filled again: %+v, %v", info, err)
	}
	w.reopen()
	if w.stored.State.Fence.Epoch != 6 {
		t.Fatal("the state is old")
	}
}

func TestCredits(t *testing.T) {
	fsys := memory.New(1, memory.Options{})
	w := newWorld(t, fsys, "/pool", testOptions(1))
	fsys.SetCapacity(fsys.Used() + 64<<10 + 100<<12) // the reserve and 100 blocks
	have, err := w.pool.Available()
	must(t, err)
	if have != 100<<12 {
		t.Fatalf("%d available", have)
	}
	must(t, w.pool.Grant(90<<12))
	wantKind(t, w.pool.Grant(11<<12), fault.NoSpace)
	wantKind(t, w.do(&Op{Code: Reserve, Range: at(0, 11<<12)})[0], fault.NoSpace)
	w.ok(&Op{Code: Reserve, Range: at(512, 512)}) // one block, rounded
	wantKind(t, w.pool.Grant(10<<12), fault.NoSpace)
	must(t, w.pool.Grant(9<<12))
	w.pool.Release(99 << 12)
	w.ok(&Op{Code: Reserve, Range: at(1<<20, 90<<12)})
	fsys.SetCapacity(fsys.Used()) // not a block more
	w.ok(&Op{Code: Write, Range: at(512, 512), Buffer: constant(512, 1)},
		&Op{Code: Write, Range: at(1<<20, 90<<12), Buffer: constant(90<<12, 1)})
	w.ok(&Op{Code: Reserve, Range: at(1<<20, 90<<12)}) // nothing more is needed
	defer func() {
		if recover() == nil {
			t.Fatal("too much was released")
		}
	}()
	w.pool.Release(1)
}

// st_blocks of the real file system: holes stay holes, trims give space back, reservations take it.
func TestHolesOnDisk(t *testing.T) {
	w := newWorld(t, disk.Native{}, t.TempDir()+"/pool", testOptions(1))
	defer w.pool.Close()
	used := func() int64 {
		info, err := w.fs.Stat(w.replica.dir + "/data")
		must(t, err)
		return info.Allocated
	}
	probe := &Op{Code: ReadSegments, Range: at(0, testSize), Buffer: constant(testSize, 1)}
	w.ok(probe)
	if len(probe.Segments) != 1 || !probe.Segments[0].Hole {
		t.Skip("the file system of the temporary folder shows no holes")
	}
	if used() != 0 {
		t.Fatalf("an empty volume takes %d bytes", used())
	}
	w.ok(&Op{Code: Write, Range: at(1<<20, 1<<20), Buffer: constant(1<<20, 1)}, &Op{Code: Sync})
	if used() != 1<<20 {
		t.Fatalf("1 MiB takes %d bytes", used())
	}
	w.ok(&Op{Code: Zero, Range: at(512, 1<<20-1024), Punch: true},
		&Op{Code: WriteSegments, Range: at(4<<20, 1<<20), Segments: []Segment{{Range: at(4<<20, 1<<20), Hole: true}}})
	if used() != 1<<20 {
		t.Fatalf("trimming holes took space: %d", used())
	}
	w.ok(&Op{Code: Zero, Range: at(1<<20+512, 1<<20-1024), Punch: true})
	if used() != 8192 {
		t.Fatalf("after trimming %d bytes are used", used())
	}
	w.wantBytes(1<<20, 512, 1)
	w.wantBytes(1<<20+512, 1<<20-1024, 0)
	w.wantBytes(2<<20-512, 512, 1)
	w.ok(&Op{Code: Reserve, Range: at(6<<20, 1<<20)})
	if used() != 8192+1<<20 {
		t.Fatalf("after reserving %d bytes are used", used())
	}
	w.ok(&Op{Code: ReadSegments, Range: at(6<<20, 1<<20), Buffer: constant(1<<20, 1)})
	w.wantBytes(6<<20, 1<<20, 0)
	w.ok(&Op{Code: Zero, Range: at(6<<20, 1<<20)}) // keeps its space
	if used() != 8192+1<<20 {
		t.Fatalf("after zeroing %d bytes are used", used())
	}
	// Dirty pages and fresh extents are never holes.
	for i := range uint64(64) {
		w.ok(&Op{Code: Write, Range: at(i*8192, 512), Buffer: constant(512, 7)})
		op := &Op{Code: ReadSegments, Range: at(i*8192, 512), Buffer: constant(512, 0)}
		w.ok(op)
		if len(op.Segments) != 1 || op.Segments[0].Hole || op.Buffer.Bytes()[0] != 7 {
			t.Fatalf("fresh data is a hole: %+v", op.Segments)
		}
	}
}

func TestDirectFallsBack(t *testing.T) {
	var said bytes.Buffer
	options := testOptions(1)
	options.Logger = logger(&said)
	w := newWorld(t, memory.New(1, memory.Options{}), "/pool", options)
	must(t, w.pool.CreateReplica(testConfiguration(otherVolume, 1<<20), volume.ReplicaState{}, nil))
	_, _, err := w.pool.OpenReplica(otherVolume)
	must(t, err)
	if n := strings.Count(said.String(), "page cache"); n != 1 {
		t.Fatalf("%d lines about the page cache: %s", n, said.String())
	}
	info, err := w.pool.Info()
	must(t, err)
	if !strings.Contains(info.Replicas[0].Buffered, "no direct I/O") {
		t.Fatalf("info %+v", info.Replicas[0])
	}
	direct := memory.Options{Direct: disk.Limits{Direct: true, Offset: 4096, Memory: 512}}
	w = newWorld(t, memory.New(1, direct), "/pool", testOptions(1))
	if w.replica.Buffered() != "" {
		t.Fatal(w.replica.Buffered())
	}
	must(t, w.pool.CreateReplica(testConfiguration(otherVolume, 1<<20+512), volume.ReplicaState{}, nil))
	odd, _, err := w.pool.OpenReplica(otherVolume)
	must(t, err)
	if odd.Buffered() == "" {
		t.Fatal("a volume with half a block at its end is direct")
	}
	if err := do(odd, &Op{Code: Write, Range: at(1<<20, 512), Buffer: constant(512, 1)})[0]; err != nil {
		t.Fatal(err)
	}
	info2, err := w.fs.Stat(odd.dir + "/data")
	if err != nil || info2.Size != 1<<20+512 {
		t.Fatalf("size %d, %v", info2.Size, err)
	}
	if native := newWorld(t, disk.Native{}, t.TempDir()+"/pool", testOptions(1)); os.Getenv("SHOW") != "" {
		t.Logf("temporary folder: buffered %q, limits %+v", native.replica.Buffered(), native.replica.data.limits)
	}
}
