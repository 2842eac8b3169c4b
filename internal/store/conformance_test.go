package store

import (
	"bytes"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"samovar/internal/fault"
	"samovar/internal/store/disk"
	"samovar/internal/volume"
)

// The suite that every implementation of disk.FS must pass below the store, with every back end.
func TestConformance(t *testing.T) {
	tests := []struct {
		name string
		run  func(*world)
	}{
		{"data", checkData}, {"zero exactly", checkZeroExactly}, {"segments", checkSegments},
		{"small files", checkSmallFiles}, {"log", checkLog}, {"bounds", checkBounds}, {"close", checkClose},
		{"random against twin", checkTwin}, {"neighbours", checkNeighbours}, {"reserve", checkReserve},
		{"life", checkLife}, {"deep", checkDeep},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			eachDisk(t, func(t *testing.T, fsys disk.FS, dir string) {
				for _, s := range setups(fsys) {
					t.Run(s.String(), func(t *testing.T) {
						w := newWorld(t, fsys, dir+"-"+s.String(), s.options(1))
						test.run(w)
						must(t, w.pool.Close())
					})
				}
			})
		})
	}
}

func checkData(w *world) {
	w.wantBytes(0, 64<<10, 0)
	for _, r := range []volume.Range{at(0, 4096), at(512, 512), at(8192+512, 12288), at(testSize-512, 512), at(1<<20, 1<<20)} {
		c := byte(r.Offset>>9) | 1
		for _, fua := range []bool{false, true} {
			w.ok(&Op{Code: Write, Range: r, Buffer: constant(int(r.Length), c), FUA: fua})
			w.wantBytes(r.Offset, r.Length, c)
		}
	}
	w.ok(&Op{Code: Sync})
	w.reopen()
	w.wantBytes(512, 512, 1)
	w.wantBytes(1024, 1024, 1)
	w.wantBytes(1<<20, 1<<20, 1)
	var batch []*Op // adjacent: they merge
	for i := range uint64(40) {
		batch = append(batch, &Op{Code: Write, Range: at(i*512, 512), Buffer: constant(512, byte(i))})
	}
	w.ok(batch...)
	for i := range uint64(40) {
		w.wantBytes(i*512, 512, byte(i))
	}
}

func checkZeroExactly(w *world) {
	const span = 64 << 10
	for _, punch := range []bool{false, true} {
		for _, r := range []volume.Range{at(512, 512), at(512, 8192), at(4096, 8192), at(3584, 9216), at(0, span), at(4096, 512)} {
			for _, fua := range []bool{false, true} {
				w.ok(&Op{Code: Write, Range: at(0, span), Buffer: constant(span, 5)})
				w.ok(&Op{Code: Zero, Range: r, Punch: punch, FUA: fua})
				want := bytes.Repeat([]byte{5}, span)
				clear(want[r.Offset:r.End()])
				if !bytes.Equal(w.read(0, span), want) {
					w.t.Fatalf("punch %v: %v is not exactly zero", punch, r)
				}
			}
		}
	}
}

func checkSegments(w *world) {
	w.ok(&Op{Code: Write, Range: at(64<<10, 8192), Buffer: constant(8192, 1)},
		&Op{Code: Write, Range: at(192<<10, 512), Buffer: constant(512, 2)})
	get := func() *Op {
		op := &Op{Code: ReadSegments, Range: at(0, 256<<10), Buffer: constant(256<<10, 0xee)}
		w.ok(op)
		return op
	}
	op := get()
	next := uint64(0)
	for _, s := range op.Segments {
		if s.Range.Offset != next || s.Range.Length == 0 || !s.Hole && s.At != s.Range.Offset {
			w.t.Fatalf("pieces %v", op.Segments)
		}
		next = s.Range.End()
		if s.Hole && s.Range.Overlaps(at(64<<10, 8192)) || s.Hole && s.Range.Overlaps(at(192<<10, 512)) {
			w.t.Fatalf("data is called a hole: %v", op.Segments)
		}
	}
	if next != 256<<10 {
		w.t.Fatalf("pieces end at %d", next)
	}
	// Copy onto a place full of other data, shifted by a sector so that holes have edges.
	const target = 1<<20 + 512
	w.ok(&Op{Code: Write, Range: at(1<<20, 1<<20), Buffer: constant(1<<20, 9)})
	var shifted []Segment
	for _, s := range op.Segments {
		s.Range.Offset += target
		shifted = append(shifted, s)
	}
	w.ok(&Op{Code: WriteSegments, Range: at(target, 256<<10), Buffer: op.Buffer, Segments: shifted, FUA: true})
	if !bytes.Equal(w.read(target, 256<<10), w.read(0, 256<<10)) {
		w.t.Fatal("the copy differs")
	}
	w.wantBytes(1<<20, 512, 9)
	w.wantBytes(target+256<<10, 4096, 9)
	w.ok(&Op{Code: WriteSegments, Range: at(target, 4096), Segments: []Segment{{Range: at(target, 4096), Hole: true}}})
	w.wantBytes(target, 4096, 0)
}

func checkSmallFiles(w *world) {
	state := testState(testVolume, testSize, 6)
	missing := set(1, 5, 100, 128)
	state.CatchingUp, state.Base = true, 2
	wantKind(w.t, w.do(&Op{Code: SaveState, State: state})[0], fault.Invalid) // missing comes first
	record := &volume.ChangeRecord{Pool: otherPool, Start: 3, Blocks: set(0, 1, 7, 9)}
	w.ok(&Op{Code: SaveMissing, Missing: missing}, &Op{Code: SaveState, State: state},
		&Op{Code: SaveRecord, Record: record},
		&Op{Code: SaveRecord, Record: &volume.ChangeRecord{Pool: volume.PoolID{3}, Start: 1}})
	first := w.stored.Incarnation
	w.reopen()
	if w.stored.Incarnation == first || w.stored.Incarnation == (volume.Incarnation{}) {
		w.t.Fatal("the incarnation is not new")
	}
	if !reflect.DeepEqual(w.stored.State, *state) {
		w.t.Fatalf("state\n%+v\nwant\n%+v", w.stored.State, *state)
	}
	if !sameSet(w.stored.Missing, missing) || len(w.stored.Records) != 2 ||
		w.stored.Records[0].Start != 3 || !sameSet(w.stored.Records[0].Blocks, record.Blocks) {
		w.t.Fatalf("stored %+v", w.stored)
	}
	state.CatchingUp = false
	w.ok(&Op{Code: DropRecord, Record: record}, &Op{Code: DropRecord, Record: record}, &Op{Code: SaveState, State: state})
	w.reopen()
	if len(w.stored.Records) != 1 || w.stored.Missing != nil || w.stored.State.CatchingUp {
		w.t.Fatalf("stored %+v", w.stored)
	}
	state.CatchingUp = true // the old missing file does not count
	wantKind(w.t, w.do(&Op{Code: SaveState, State: state})[0], fault.Invalid)
	state.CatchingUp = false
	state.Accepted.Size *= 2
	wantKind(w.t, w.do(&Op{Code: SaveState, State: state})[0], fault.Invalid)
	wantKind(w.t, w.do(&Op{Code: SaveState, State: testState(otherVolume, testSize, 1)})[0], fault.Invalid)
}

func checkLog(w *world) {
	w.ok(&Op{Code: LogChange, Add: []uint64{1, 2, 3}}, &Op{Code: LogChange, Add: []uint64{5}, Drop: []uint64{2}})
	w.ok(&Op{Code: LogChange, Drop: []uint64{3}})
	w.reopen()
	if !slices.Equal(w.stored.Log, []uint64{1, 5}) {
		w.t.Fatalf("log %v", w.stored.Log)
	}
	twin := map[uint64]bool{1: true, 5: true}
	rng := rand.New(rand.NewPCG(4, 4))
	for round := range 200 { // several rewritings
		op := &Op{Code: LogChange}
		for range rng.IntN(4) {
			n := rng.Uint64N(testSize / volume.RegionSize)
			if rng.IntN(2) == 0 {
				op.Add = append(op.Add, n)
			} else {
				op.Drop = append(op.Drop, n)
			}
		}
		for _, n := range op.Drop {
			delete(twin, n)
		}
		for _, n := range op.Add {
			twin[n] = true
		}
		w.ok(op)
		if round%50 == 49 {
			w.reopen()
			if len(twin) != len(w.stored.Log) {
				w.t.Fatalf("log %v, want %v", w.stored.Log, twin)
			}
		}
	}
}

func checkBounds(w *world) {
	b := constant(4096, 1)
	for _, op := range []*Op{
		{Code: Read, Range: at(testSize, 4096), Buffer: b}, {Code: Read, Range: at(1, 4096), Buffer: b},
		{Code: Read, Range: at(0, 512), Buffer: b}, {Code: Write, Range: at(^uint64(0)-511, 4096), Buffer: b},
		{Code: Zero, Range: at(512, testSize)}, {Code: Zero}, {Code: Write, Range: at(0, 4096)}, {Code: 99}, {},
		{Code: LogChange, Add: []uint64{testSize / volume.RegionSize}}, {Code: SaveState}, {Code: SaveRecord},
		{Code: DropRecord}, {Code: SaveMissing, Missing: set(0, testSize/volume.BlockSize+1)},
		{Code: WriteSegments, Range: at(0, 4096), Buffer: b},
		{Code: WriteSegments, Range: at(0, 4096), Segments: []Segment{{Range: at(0, 4096)}}},
		{Code: WriteSegments, Range: at(0, 4096), Buffer: b, Segments: []Segment{{Range: at(0, 4096), At: 512}}},
		{Code: WriteSegments, Range: at(0, 4096), Buffer: b, Segments: []Segment{{Range: at(0, 8192)}}},
	} {
		wantKind(w.t, w.do(op)[0], fault.Invalid)
	}
}

func checkClose(w *world) {
	var mu sync.Mutex
	count := 0
	var ops []*Op
	for i := range 200 {
		op := &Op{Code: Write, Range: at(uint64(i)*4096, 4096), Buffer: constant(4096, byte(i))}
		if i%10 == 9 {
			op = &Op{Code: Sync}
		}
		op.Done = func(_ *Op, err error) {
			mu.Lock()
			defer mu.Unlock()
			count++
		}
		ops = append(ops, op)
	}
	w.replica.Submit(ops)
	must(w.t, w.replica.Close())
	must(w.t, w.replica.Close())
	mu.Lock()
	if count != 200 {
		w.t.Fatalf("%d of 200 ended before Close returned", count)
	}
	mu.Unlock()
	wantKind(w.t, w.do(&Op{Code: Sync})[0], fault.Shutdown)
	w.openReplica()
	_, _, err := w.pool.OpenReplica(testVolume)
	wantKind(w.t, err, fault.Busy)
	w.wantBytes(4096, 4096, 1)
}

// checkTwin compares random operations with a plain slice.
func checkTwin(w *world) {
	rng := rand.New(rand.NewPCG(11, 3))
	const span = 128 << 10
	twin := make([]byte, span)
	for round := range 150 {
		offset := rng.Uint64N(span/512) * 512
		r := at(offset, 512*(1+rng.Uint64N(min(40, (span-offset)/512))))
		switch rng.IntN(5) {
		case 0, 1:
			b := filled(int(r.Length), func(i int) byte { return byte(round + i>>9) })
			w.ok(&Op{Code: Write, Range: r, Buffer: b, FUA: rng.IntN(4) == 0})
			copy(twin[r.Offset:], b.Bytes())
		case 2:
			w.ok(&Op{Code: Zero, Range: r, Punch: rng.IntN(2) == 0})
			clear(twin[r.Offset:r.End()])
		case 3:
			w.ok(&Op{Code: Reserve, Range: r})
		case 4:
			op := &Op{Code: ReadSegments, Range: r, Buffer: constant(int(r.Length), 0xee)}
			w.ok(op)
			for _, s := range op.Segments {
				got := op.Buffer.Bytes()[s.At : s.At+s.Range.Length]
				if s.Hole {
					got = make([]byte, s.Range.Length)
				}
				if !bytes.Equal(got, twin[s.Range.Offset:s.Range.End()]) {
					w.t.Fatalf("round %d: piece %v differs", round, s)
				}
			}
		}
		if got := w.read(r.Offset, r.Length); !bytes.Equal(got, twin[r.Offset:r.End()]) {
			w.t.Fatalf("round %d: %v differs", round, r)
		}
	}
	if !bytes.Equal(w.read(0, span), twin) {
		w.t.Fatal("the whole differs")
	}
}

// checkNeighbours writes all sectors of a few blocks at the same time: none may overwrite another.
func checkNeighbours(w *world) {
	for round := range byte(20) {
		var ops []*Op
		for i := range uint64(64) {
			op := &Op{Code: Write, Range: at(i*512, 512), Buffer: constant(512, round+byte(i)), FUA: i%3 == 0}
			if i%7 == 6 {
				op = &Op{Code: Zero, Range: at(i*512, 512), Punch: round%2 == 0}
			}
			ops = append(ops, op)
		}
		rand.New(rand.NewPCG(uint64(round), 1)).Shuffle(len(ops), func(i, j int) { ops[i], ops[j] = ops[j], ops[i] })
		w.ok(ops...)
		for i := range uint64(64) {
			want := round + byte(i)
			if i%7 == 6 {
				want = 0
			}
			w.wantBytes(i*512, 512, want)
		}
	}
}

// checkDeep has more under way than any back end takes at once, of many kinds and sizes.
func checkDeep(w *world) {
	const unit, count = 8192, 700
	for round := range byte(3) {
		var ops []*Op
		for i := range uint64(count) {
			op := &Op{Code: Write, Range: at(i*unit, 4096), Buffer: constant(4096, round+byte(i)), FUA: i%50 == 0}
			switch i % 10 {
			case 3: // adjacent to its neighbour
				op.Range, op.Buffer = at(i*unit, unit), constant(unit, round+byte(i))
			case 5: // not aligned
				op.Range, op.Buffer = at(i*unit, 512), constant(512, round+byte(i))
			case 7:
				op.Code = Zero
			}
			ops = append(ops, op)
		}
		ops = append(ops, &Op{Code: Sync})
		w.ok(ops...)
		for i := range ops[:count] {
			op := *ops[i]
			if want := round + byte(i); op.Code == Write {
				ops[i] = &Op{Code: Read, Range: op.Range, Buffer: constant(int(op.Range.Length), want+1)}
			}
		}
		w.ok(ops...)
		for i, op := range ops[:count] {
			if op.Code == Read && firstNot(op.Buffer.Bytes(), round+byte(i)) >= 0 {
				w.t.Fatalf("round %d: operation %d reads other bytes", round, i)
			}
		}
	}
}

func checkReserve(w *world) {
	w.ok(&Op{Code: Reserve, Range: at(512, 512)}, &Op{Code: Reserve, Range: at(testSize-512, 512)},
		&Op{Code: Reserve, Range: at(1<<20, 1<<20)})
	w.wantBytes(0, 8192, 0)
	free, err := w.pool.Available()
	must(w.t, err)
	wantKind(w.t, w.pool.Grant(free+1<<40), fault.NoSpace)
	must(w.t, w.pool.Grant(1<<20))
	info, err := w.pool.Info()
	must(w.t, err)
	if info.Promised != 1<<20 || info.Reserved != 64<<10 || info.Total == 0 {
		w.t.Fatalf("info %+v", info)
	}
	w.pool.Release(1 << 20)
}

func checkLife(w *world) {
	wantKind(w.t, w.pool.CreateReplica(testConfiguration(testVolume, testSize), volume.ReplicaState{}, nil), fault.Busy)
	must(w.t, w.pool.CreateReplica(testConfiguration(otherVolume, 1<<20), volume.ReplicaState{CatchingUp: true}, set(0, 16)))
	wantKind(w.t, w.pool.CreateReplica(testConfiguration(otherVolume, 1<<20), volume.ReplicaState{}, nil), fault.Exists)
	_, err := w.pool.DeleteReplica(testVolume)
	wantKind(w.t, err, fault.Busy)
	_, _, err = w.pool.OpenReplica(volume.ID{99})
	wantKind(w.t, err, fault.NotFound)
	r, stored, err := w.pool.OpenReplica(otherVolume)
	must(w.t, err)
	if stored.Missing.Count() != 16 || stored.State.Accepted.Revision != 17 || r.Size() != 1<<20 || r.Volume() != otherVolume {
		w.t.Fatalf("stored %+v", stored)
	}
	must(w.t, r.Close())
	_, err = OpenPool(w.fs, w.dir, w.options)
	wantKind(w.t, err, fault.Busy)
	if !strings.Contains(err.Error(), "process ") {
		w.t.Fatalf("%v does not name the holder", err)
	}
	name, err := w.pool.DeleteReplica(otherVolume)
	must(w.t, err)
	_, err = w.pool.DeleteReplica(otherVolume)
	wantKind(w.t, err, fault.NotFound)
	info, err := w.pool.Info()
	must(w.t, err)
	if len(info.Replicas) != 1 || !info.Replicas[0].Open || len(info.Leftovers) != 1 ||
		info.Leftovers[0].Kind != Tombstone || info.Leftovers[0].Volume != otherVolume || !info.Leftovers[0].Deleted.Equal(epochStart) {
		w.t.Fatalf("info %+v", info)
	}
	wantKind(w.t, w.pool.Purge("volume-"+testVolume.String()), fault.Invalid)
	wantKind(w.t, w.pool.Purge("../"+name), fault.Invalid)
	must(w.t, w.pool.Purge(name))
	wantKind(w.t, w.pool.Purge(name), fault.NotFound)
	list, err := w.pool.Replicas()
	must(w.t, err)
	if !slices.Equal(list, []volume.ID{testVolume}) {
		w.t.Fatalf("replicas %v", list)
	}
}

func TestUnalignedMemory(t *testing.T) {
	eachDisk(t, func(t *testing.T, fsys disk.FS, dir string) {
		for _, s := range setups(fsys) {
			w := newWorld(t, fsys, dir+"-"+s.String(), s.options(1))
			defer w.pool.Close()
			b := filled(64<<10, func(i int) byte { return byte(i >> 9) })
			w.ok(&Op{Code: WriteSegments, Range: at(0, 16384), Buffer: b,
				Segments: []Segment{{Range: at(0, 16384), At: 512 + 1}}})
			if got := w.read(0, 16384); !bytes.Equal(got, b.Bytes()[513:513+16384]) {
				t.Fatalf("%v: differs", s)
			}
		}
	})
}
