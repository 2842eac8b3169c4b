package store

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	"samovar/internal/bitmap"
	"samovar/internal/fault"
	"samovar/internal/volume"
)

const (
	modelSectors = 96
	modelStart   = 8192 // bytes: where they are
)

// model knows what a replica may hold: for each thing, every version since the last one that was acknowledged
// as durable, that one included.
type model struct {
	sectors  [modelSectors][]byte // values of whole sectors
	current  [modelSectors]byte   // what a read must see now; meaningful unless doubt
	doubt    [modelSectors]bool   // an operation on it failed: any version may be seen
	states   []volume.ReplicaState
	records  map[volume.PoolID][]*volume.ChangeRecord // nil: none
	missing  []*bitmap.Bitmap
	required map[uint64]bool // regions that must be in the log
	ever     map[uint64]bool // regions that may be
	next     byte
	epoch    uint64
	syncLost bool
}

func newModel() *model {
	m := &model{records: map[volume.PoolID][]*volume.ChangeRecord{}, required: map[uint64]bool{}, ever: map[uint64]bool{}}
	for i := range m.sectors {
		m.sectors[i] = []byte{0}
	}
	m.states = []volume.ReplicaState{*testState(testVolume, testSize, 1)}
	m.epoch = 1
	return m
}

// step does one random operation and notes what it may have done. It tells the error.
func (m *model) step(w *world, rng *rand.Rand) error {
	switch rng.IntN(9) {
	case 0, 1, 2, 3:
		return m.dataStep(w, rng)
	case 4:
		before := m.current
		err := w.do(&Op{Code: Sync})[0]
		for i := range m.sectors {
			switch {
			case err != nil:
				m.doubt[i] = true // lost pages may read as before
			case !m.doubt[i]:
				m.sectors[i] = []byte{before[i]}
			}
		}
		m.syncLost = m.syncLost || err != nil
		return err
	case 5, 6:
		return m.logStep(w, rng)
	case 7:
		return m.stateStep(w, rng)
	default:
		return m.recordStep(w, rng)
	}
}

func (m *model) dataStep(w *world, rng *rand.Rand) error {
	first := rng.IntN(modelSectors)
	count := 1 + rng.IntN(min(20, modelSectors-first))
	m.next++
	op := &Op{Code: Write, FUA: rng.IntN(4) == 0, Range: at(modelStart+uint64(first)*512, uint64(count)*512)}
	value := m.next | 1
	switch rng.IntN(4) {
	case 0:
		value, op.Code, op.Punch = 0, Zero, rng.IntN(2) == 0
	case 1:
		op.Code, op.Segments = WriteSegments, []Segment{{Range: op.Range}}
		op.Buffer = constant(count*512, value)
	default:
		op.Buffer = constant(count*512, value)
	}
	err := w.do(op)[0]
	for i := first; i < first+count; i++ {
		m.sectors[i] = append(m.sectors[i], value)
		m.current[i] = value
		switch {
		case err != nil:
			m.doubt[i] = true
		case m.doubt[i]:
			m.doubt[i] = false
			fallthrough
		default:
			if op.FUA {
				m.sectors[i] = []byte{value}
			}
		}
	}
	if err != nil && op.FUA && fault.Is(err, fault.IO) && w.replica.SyncLoss() != nil {
		for i := range m.doubt {
			m.doubt[i] = true
		}
	}
	return err
}

func (m *model) logStep(w *world, rng *rand.Rand) error {
	op := &Op{Code: LogChange}
	for range rng.IntN(3) {
		op.Drop = append(op.Drop, rng.Uint64N(testSize/volume.RegionSize))
	}
	for range rng.IntN(3) {
		op.Add = append(op.Add, rng.Uint64N(testSize/volume.RegionSize))
	}
	for _, n := range op.Drop {
		delete(m.required, n)
	}
	for _, n := range op.Add {
		m.ever[n] = true
	}
	err := w.do(op)[0]
	if err == nil {
		for _, n := range op.Add {
			m.required[n] = true
		}
	}
	return err
}

func (m *model) stateStep(w *world, rng *rand.Rand) error {
	m.epoch++
	s := *testState(testVolume, testSize, m.epoch)
	s.CatchingUp = rng.IntN(2) == 0
	if s.CatchingUp {
		missing := set(rng.Uint64N(60), 64, 70, 70+1+rng.Uint64N(50))
		err := w.do(&Op{Code: SaveMissing, Missing: missing})[0]
		m.missing = append(m.missing, missing)
		if err != nil {
			return err
		}
		m.missing = []*bitmap.Bitmap{missing}
	}
	err := w.do(&Op{Code: SaveState, State: &s})[0]
	m.states = append(m.states, s)
	if err == nil {
		m.states = []volume.ReplicaState{s}
	}
	return err
}

func (m *model) recordStep(w *world, rng *rand.Rand) error {
	pool := volume.PoolID{byte(2 + rng.IntN(2))}
	if len(m.records[pool]) == 0 {
		m.records[pool] = []*volume.ChangeRecord{nil}
	}
	if rng.IntN(3) == 0 {
		err := w.do(&Op{Code: DropRecord, Record: &volume.ChangeRecord{Pool: pool}})[0]
		m.records[pool] = append(m.records[pool], nil)
		return err
	}
	r := &volume.ChangeRecord{Pool: pool, Start: volume.Generation(m.epoch), Blocks: set(0, 1+rng.Uint64N(100))}
	err := w.do(&Op{Code: SaveRecord, Record: r})[0]
	m.records[pool] = append(m.records[pool], r)
	if err == nil {
		m.records[pool] = []*volume.ChangeRecord{r}
	}
	return err
}

// verifyLive checks what a read sees while the replica stays open.
func (m *model) verifyLive(w *world) error {
	b := w.read(modelStart, modelSectors*512)
	for i := range m.sectors {
		value := b[i*512]
		if firstNot(b[i*512:(i+1)*512], value) >= 0 {
			return fmt.Errorf("sector %d is torn", i)
		}
		if !m.doubt[i] && value != m.current[i] {
			return fmt.Errorf("sector %d is %d, want %d", i, value, m.current[i])
		}
		if !contains(m.sectors[i], value) {
			return fmt.Errorf("sector %d is %d, want one of %v", i, value, m.sectors[i])
		}
	}
	return nil
}

func contains(list []byte, c byte) bool {
	for _, v := range list {
		if v == c {
			return true
		}
	}
	return false
}

// verifyOpened checks everything after an opening and takes what it finds as the truth from now on. certain:
// what is there is on stable storage.
func (m *model) verifyOpened(w *world, certain bool) error {
	m.syncLost = false
	for i := range m.doubt {
		m.doubt[i] = true
	}
	if err := m.verifyLive(w); err != nil {
		return err
	}
	b := w.read(modelStart, modelSectors*512)
	for i := range m.sectors {
		m.current[i], m.doubt[i] = b[i*512], false
		if certain {
			m.sectors[i] = []byte{m.current[i]}
		}
	}
	found := false
	for _, s := range m.states {
		found = found || reflect.DeepEqual(s, w.stored.State)
	}
	if !found {
		return fmt.Errorf("state of epoch %d is none of %d possible ones", w.stored.State.Fence.Epoch, len(m.states))
	}
	m.states = []volume.ReplicaState{w.stored.State} // opening made it lasting
	return m.verifySets(w, certain)
}

func (m *model) verifySets(w *world, certain bool) error {
	if w.stored.State.CatchingUp {
		found := false
		for _, s := range m.missing {
			found = found || sameSet(s, w.stored.Missing)
		}
		if !found {
			return fmt.Errorf("missing has %d blocks", w.stored.Missing.Count())
		}
		m.missing = []*bitmap.Bitmap{w.stored.Missing}
	}
	have := map[volume.PoolID]*volume.ChangeRecord{}
	for _, r := range w.stored.Records {
		have[r.Pool] = &r
	}
	for pool, versions := range m.records {
		got, found := have[pool], false
		for _, v := range versions {
			found = found || v == nil && got == nil ||
				v != nil && got != nil && v.Start == got.Start && sameSet(v.Blocks, got.Blocks)
		}
		if !found {
			return fmt.Errorf("record of pool %v is %+v, one of %d versions was expected", pool, got, len(versions))
		}
		m.records[pool] = []*volume.ChangeRecord{got}
	}
	in := map[uint64]bool{}
	for _, n := range w.stored.Log {
		in[n] = true
		if !m.ever[n] {
			return fmt.Errorf("region %d is in the log and never was put there", n)
		}
		m.required[n] = true
	}
	for n := range m.required {
		if !in[n] {
			return fmt.Errorf("region %d is not in the log %v", n, w.stored.Log)
		}
	}
	return nil
}

// tryOpen opens pool and replica of a world after a crash.
func (w *world) tryOpen() error {
	var err error
	if w.pool, err = OpenPool(w.fs, w.dir, w.options); err != nil {
		return err
	}
	w.replica, w.stored, err = w.pool.OpenReplica(testVolume)
	return err
}

func failf(t *testing.T, seed uint64, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("seed %d: %s: %v", seed, what, err)
	}
}
