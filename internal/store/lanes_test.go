package store

import (
	"sync"
	"testing"

	"samovar/internal/store/disk"
	"samovar/internal/store/disk/memory"
)

// gate lets a test hold Sync calls of the disk.
type gate struct {
	entered chan struct{}
	open    chan struct{}
}

// Syncs that wait while one runs become one, and it starts only after they were submitted: what was done before
// is covered.
func TestSyncsAreCoalesced(t *testing.T) {
	for _, code := range []Code{Sync, LogChange} {
		fsys := memory.New(1, memory.Options{})
		options := testOptions(1)
		options.Synchronous = false
		w := newWorld(t, fsys, "/pool", options)
		var mu sync.Mutex
		syncs := 0
		g := gate{make(chan struct{}, 100), make(chan struct{})}
		fsys.Hook(func(c memory.Call) memory.Fault {
			if c.Op == memory.Sync {
				mu.Lock()
				syncs++
				first := syncs == 1
				mu.Unlock()
				if first {
					g.entered <- struct{}{}
					<-g.open // the file system is locked meanwhile: submitting must not need it
				}
			}
			return memory.Fault{}
		})
		var group sync.WaitGroup
		submit := func(n uint64) {
			group.Add(1)
			op := &Op{Code: code, Done: func(_ *Op, err error) {
				if err != nil {
					t.Error(err)
				}
				group.Done()
			}}
			if code == LogChange {
				op.Add = []uint64{n}
			}
			w.replica.Submit([]*Op{op})
		}
		submit(0)
		<-g.entered
		for n := range uint64(7) {
			submit(n + 1)
		}
		close(g.open)
		group.Wait()
		if syncs != 2 {
			t.Fatalf("%v: 8 operations took %d syncs, want 2", code, syncs)
		}
		w.reopen()
		if code == LogChange && len(w.stored.Log) != 8 {
			t.Fatalf("log %v", w.stored.Log)
		}
	}
}

// A region that is dropped and comes back before anything else happened needs no I/O.
func TestLogIsLazy(t *testing.T) {
	fsys := memory.New(1, memory.Options{})
	w := newWorld(t, fsys, "/pool", testOptions(1))
	w.ok(&Op{Code: LogChange, Add: []uint64{1, 2}})
	before := fsys.Steps()
	w.ok(&Op{Code: LogChange, Drop: []uint64{1}}, &Op{Code: LogChange, Add: []uint64{1}}, &Op{Code: LogChange, Add: []uint64{2}})
	if fsys.Steps() != before {
		t.Fatalf("%d calls", fsys.Steps()-before)
	}
	w.ok(&Op{Code: LogChange, Drop: []uint64{1}})
	w.ok(&Op{Code: LogChange, Add: []uint64{3}})
	if fsys.Steps() != before+2 {
		t.Fatalf("%d calls for one new region, want a write and a sync", fsys.Steps()-before)
	}
	fsys.Crash()
	must(t, w.tryOpen())
	if len(w.stored.Log) != 2 {
		t.Fatalf("log %v", w.stored.Log)
	}
}

// An operation may submit the next from its Done, and itself again, in every kind of pool.
func TestSubmitFromDone(t *testing.T) {
	for _, s := range setups(memory.New(1, memory.Options{Queue: true})) {
		w := newWorld(t, memory.New(1, memory.Options{Queue: true}), "/pool", s.options(1))
		done, left := make(chan struct{}), 1000
		op := &Op{Code: Write, Range: at(0, 512), Buffer: constant(512, 1)}
		op.Done = func(op *Op, err error) {
			if err != nil {
				t.Error(err)
			}
			if left--; left == 0 {
				close(done)
				return
			}
			op.Code = []Code{Write, Sync, LogChange}[left%3]
			op.Add = []uint64{uint64(left % 8)}
			w.replica.Submit([]*Op{op})
		}
		w.replica.Submit([]*Op{op})
		<-done
		must(t, w.pool.Close())
	}
}

// Many goroutines, many replicas' worth of operations, and a Close in the middle: every Done is called.
func TestCloseUnderLoad(t *testing.T) {
	eachDisk(t, func(t *testing.T, fsys disk.FS, dir string) {
		for _, s := range setups(fsys) {
			if !s.synchronous {
				closeUnderLoad(newWorld(t, fsys, dir+"-"+s.String(), s.options(1)))
			}
		}
	})
}

func closeUnderLoad(w *world) {
	var group, done sync.WaitGroup
	for g := range uint64(4) {
		group.Go(func() {
			for i := range uint64(200) {
				op := &Op{Code: Code(1 + i%12), Range: at(g<<20+i*512, 512), Buffer: constant(512, 1),
					State: testState(testVolume, testSize, i), Add: []uint64{g},
					Segments: []Segment{{Range: at(g<<20+i*512, 512)}}}
				if op.Code == SaveRecord || op.Code == DropRecord {
					op.Code = Sync
				}
				done.Add(1)
				op.Done = func(*Op, error) { done.Done() }
				w.replica.Submit([]*Op{op})
				if g == 0 && i == 150 {
					group.Go(func() { must(w.t, w.pool.Close()) })
				}
			}
		})
	}
	group.Wait()
	done.Wait()
}
