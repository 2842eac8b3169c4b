package store

import (
	"math/rand/v2"
	"testing"

	"samovar/internal/block"
	"samovar/internal/store/disk"
)

// benchWorld is a pool with workers on the real file system whose data file is written fully.
func benchWorld(b *testing.B) *world {
	options := testOptions(1)
	options.Synchronous, options.LogCapacity = false, 0
	w := newWorld(b, disk.Native{}, b.TempDir()+"/pool", options)
	buffer := constant(1<<20, 3)
	for range 2 {
		for i := range uint64(testSize >> 20) {
			w.ok(&Op{Code: Write, Range: at(i<<20, 1<<20), Buffer: buffer})
		}
	}
	w.ok(&Op{Code: Sync})
	b.Cleanup(func() { w.pool.Close() })
	b.ReportAllocs()
	return w
}

// keepBusy keeps depth operations under way until n are done; prepare says what the next one is.
func keepBusy(b *testing.B, w *world, depth, batch int, prepare func(*Op, uint64)) {
	done := make(chan *Op, depth)
	ready := make([]*Op, 0, depth)
	buffers := make([]*block.Buffer, depth)
	for i := range depth {
		buffers[i] = constant(4096, byte(i))
		op := &Op{Buffer: buffers[i]}
		op.Done = func(op *Op, err error) {
			if err != nil {
				b.Error(err)
			}
			done <- op
		}
		ready = append(ready, op)
	}
	next, finished := 0, 0
	for b.Loop() {
		for len(ready) < batch {
			ready = append(ready, <-done)
			finished++
		}
		ops := ready[len(ready)-batch:]
		for _, op := range ops {
			prepare(op, uint64(next))
			next++
		}
		w.replica.Submit(ops)
		ready = ready[:len(ready)-batch]
	}
	for ; finished < next; finished++ {
		<-done
	}
	b.ReportMetric(float64(next)/b.Elapsed().Seconds(), "op/s")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(next), "ns/one")
}

func BenchmarkWrite4K(b *testing.B) {
	w := benchWorld(b)
	rng := rand.New(rand.NewPCG(1, 1))
	order := rng.Perm(testSize / 4096) // no two under way at one place
	keepBusy(b, w, 32, 8, func(op *Op, n uint64) {
		op.Code, op.Range = Write, at(uint64(order[n%uint64(len(order))])*4096, 4096)
	})
}

func BenchmarkWrite4KSequential(b *testing.B) {
	w := benchWorld(b)
	keepBusy(b, w, 32, 8, func(op *Op, n uint64) { op.Code, op.Range = Write, at(n*4096%testSize, 4096) })
}

func BenchmarkRead4K(b *testing.B) {
	w := benchWorld(b)
	rng := rand.New(rand.NewPCG(1, 1))
	keepBusy(b, w, 32, 8, func(op *Op, _ uint64) {
		op.Code, op.Range = Read, at(rng.Uint64N(testSize/4096)*4096, 4096)
	})
}

func BenchmarkWriteFUA4K(b *testing.B) {
	w := benchWorld(b)
	keepBusy(b, w, 8, 1, func(op *Op, n uint64) { op.Code, op.FUA, op.Range = Write, true, at(n*4096%testSize, 4096) })
}

func BenchmarkSync(b *testing.B) {
	w := benchWorld(b)
	keepBusy(b, w, 8, 1, func(op *Op, n uint64) {
		if op.Code, op.Range = Write, at(n*4096%testSize, 4096); n%2 == 1 {
			op.Code = Sync
		}
	})
}

func BenchmarkLogChange(b *testing.B) {
	w := benchWorld(b)
	keepBusy(b, w, 8, 1, func(op *Op, n uint64) {
		op.Code, op.Add, op.Drop = LogChange, []uint64{n % 8}, []uint64{(n + 4) % 8}
	})
}

func BenchmarkSaveState(b *testing.B) {
	w := benchWorld(b)
	keepBusy(b, w, 1, 1, func(op *Op, n uint64) {
		op.Code, op.State = SaveState, testState(testVolume, testSize, n)
	})
}
