package simulation

import (
	"math/rand/v2"
	"testing"
	"time"

	"samovar/internal/fault"
	"samovar/internal/replication"
	"samovar/internal/replication/replica"
	"samovar/internal/volume"
)

// bench is a world with one machine and its disk, and nothing that acts by itself.
func bench(seed uint64) (*World, *disk) {
	w := &World{rng: rand.New(rand.NewPCG(seed, 2))}
	w.profile = profile{replicas: 1, metaTime: time.Millisecond, latency: 100 * time.Microsecond, breakAfter: time.Second, size: 1 << 20}
	w.newMachine(true)
	w.newMachine(false)
	w.links = [][]link{make([]link, 2), make([]link, 2)}
	w.register = newRegister(w, 1<<20)
	record := volume.Configuration{Groups: []volume.Group{{Members: []volume.Member{{Pool: w.machines[0].pool, InSync: true}}}}}
	w.truth = newTruth(w)
	w.store = newStore(w, record)
	w.machines[0].disk = newDisk(w, w.machines[0], 1<<20)
	return w, w.machines[0].disk
}

func (w *World) settle(t *testing.T) {
	t.Helper()
	w.runUntil(time.Minute, func() bool { return false })
	if w.broken != "" {
		t.Fatal(w.broken)
	}
}

func writeOf(at, length, stamp uint64) replica.DiskRequest {
	return replica.DiskRequest{Op: replica.DiskWrite, Range: volume.Range{Offset: at, Length: length}, Payload: stamp}
}

func values(m *image) (found map[uint64]bool) {
	found = map[uint64]bool{}
	m.each(0, 8192, func(_, _, v uint64) { found[v] = true })
	return found
}

func TestPowerLossKeepsWhatWasSynced(t *testing.T) {
	torn, old, fresh := 0, 0, 0
	for seed := range uint64(200) {
		w, d := bench(seed)
		status := []fault.Kind{}
		done := func(r replica.DiskResult) { status = append(status, r.Status) }
		d.submit(writeOf(0, 8192, 10), done)
		w.settle(t)
		d.submit(replica.DiskRequest{Op: replica.DiskSync}, done)
		w.settle(t)
		d.submit(writeOf(0, 8192, 11), done)
		w.settle(t)
		q := writeOf(16384, 512, 12)
		q.FUA = true
		d.submit(q, done)
		w.settle(t)
		d.losePower()
		if len(status) != 4 {
			t.Fatal(status)
		}
		v := values(d.cached)
		switch {
		case len(v) == 2 && v[10] && v[11]:
			torn++
		case len(v) == 1 && v[10]:
			old++
		case len(v) == 1 && v[11]:
			fresh++
		default:
			t.Fatalf("seed %d: after a loss of power: %v", seed, v)
		}
		if d.cached.count(16384, 16384+512, 12) != 512 {
			t.Fatalf("seed %d: a write-through was lost", seed)
		}
		if _, _, _, differ := d.cached.difference(d.durable); differ {
			t.Fatal("after a loss of power the cache shows something else than the medium")
		}
	}
	if torn == 0 || old == 0 || fresh == 0 {
		t.Errorf("torn %d, old %d, fresh %d: some outcome never happens", torn, old, fresh)
	}
}

// A sync covers only what was completed before it was issued.
func TestSyncCoversEarlierWritesOnly(t *testing.T) {
	lost := false
	for seed := range uint64(100) {
		w, d := bench(seed)
		d.submit(replica.DiskRequest{Op: replica.DiskSync}, func(replica.DiskResult) {})
		d.submit(writeOf(0, 8192, 10), func(replica.DiskResult) {})
		w.settle(t)
		d.losePower()
		lost = lost || !values(d.cached)[10]
	}
	if !lost {
		t.Error("a write beside a sync is always kept")
	}
}

func TestRestartKeepsTheCacheAndTearsWhatIsUnderWay(t *testing.T) {
	outcomes := map[int]bool{}
	for seed := range uint64(100) {
		w, d := bench(seed)
		d.submit(writeOf(0, 8192, 10), func(replica.DiskResult) {})
		w.settle(t)
		d.submit(writeOf(0, 8192, 11), func(replica.DiskResult) { t.Error("a dead process got an answer") })
		d.restartProcess()
		w.settle(t)
		v := values(d.cached)
		if v[hole] {
			t.Fatal("the cache was lost")
		}
		outcomes[len(v)*2+map[bool]int{v[10]: 1}[true]] = true
	}
	if len(outcomes) < 3 {
		t.Errorf("outcomes %v: writes under way end always the same", outcomes)
	}
}

// A failed sync may drop pages; a later good sync says nothing about them.
func TestFailedSyncDropsPages(t *testing.T) {
	reverted, hidden := 0, 0
	for seed := range uint64(200) {
		w, d := bench(seed)
		d.submit(writeOf(0, 8192, 10), func(replica.DiskResult) {})
		w.settle(t)
		d.syncFails = 1
		var status fault.Kind
		d.submit(replica.DiskRequest{Op: replica.DiskSync}, func(r replica.DiskResult) { status = r.Status })
		w.settle(t)
		d.syncFails = 0
		d.submit(replica.DiskRequest{Op: replica.DiskSync}, func(replica.DiskResult) {})
		w.settle(t)
		if status != fault.IO {
			t.Fatal(status)
		}
		switch {
		case values(d.cached)[hole]:
			reverted++
		case values(d.durable)[hole]:
			hidden++
		}
	}
	if reverted == 0 || hidden == 0 {
		t.Errorf("reverted at once %d, still shown %d", reverted, hidden)
	}
}

func TestMetadataIsOldOrNewAfterACrash(t *testing.T) {
	seen := map[volume.Generation]bool{}
	for seed := range uint64(50) {
		_, d := bench(seed)
		s := volume.ReplicaState{Base: 7}
		d.submit(replica.DiskRequest{Op: replica.SaveState, State: &s}, func(replica.DiskResult) {})
		s.Base = 8 // the caller may change it: it was taken when it was handed over
		d.restartProcess()
		seen[d.meta.stored(volume.Incarnation{}).State.Base] = true
	}
	if !seen[0] || !seen[7] || len(seen) != 2 {
		t.Error(seen)
	}
}

func TestSpace(t *testing.T) {
	s := newSpace(1 << 20)
	s.on, s.capacity, s.slice = true, 64<<10, 16<<10
	if s.free() != 16<<10 {
		t.Error("promises more than its slice", s.free())
	}
	s.promised = s.free()
	if s.reserve(volume.Range{Length: 56 << 10}) {
		t.Error("a reservation broke into what was promised")
	}
	if !s.reserve(volume.Range{Length: 48 << 10}) || !s.admit([]Piece{{Range: volume.Range{Length: 48 << 10}, Stamp: 9}}, false) {
		t.Error("reserved space cannot be written")
	}
	s.fill(0)
	if !s.admit([]Piece{{Range: volume.Range{Offset: 64 << 10, Length: 16 << 10}, Stamp: 9}}, false) {
		t.Error("promised space was given to others")
	}
	if s.admit([]Piece{{Range: volume.Range{Offset: 128 << 10, Length: 512}, Stamp: 9}}, false) {
		t.Error("a full disk takes more")
	}
	if s.admit([]Piece{{Range: volume.Range{Length: 48 << 10}, Hole: true}}, true); s.used != 16<<10 {
		t.Error("a punch gives nothing back", s.used)
	}
}

// What is sent into a cut link comes after it is healed, in order, or the connection breaks at both ends.
func TestNetworkOrderAndBreaks(t *testing.T) {
	healed, broke := 0, 0
	for seed := range uint64(100) {
		w, _ := bench(seed)
		a, b := &process{machine: w.machines[0]}, &process{machine: w.machines[1]}
		c := w.newConn(a, b)
		got, closed := []uint64{}, [2]bool{}
		for i := range 2 {
			c.ends[i].received = func(m replication.Message) { got = append(got, m.ID) }
			c.ends[i].closed = func() { closed[i] = true }
		}
		for id := uint64(1); id <= 20; id++ {
			c.send(0, replication.Message{ID: id})
			if id == 10 {
				w.setLink(a.machine, b.machine, link{cut: true})
				w.after(w.between(0, time.Second), func() { w.setLink(a.machine, b.machine, link{}) })
			}
		}
		w.settle(t)
		for i, id := range got {
			if id != uint64(i+1) {
				t.Fatalf("seed %d: out of order: %v", seed, got)
			}
		}
		switch {
		case len(got) == 20:
			healed++
		case closed[1] && len(got) == 10:
			broke++
		default:
			t.Fatalf("seed %d: %d arrived, closed %v", seed, len(got), closed)
		}
	}
	if healed == 0 || broke == 0 {
		t.Errorf("healed %d, broke %d", healed, broke)
	}
}

// Clocks run apart, but by no more than the drift.
func TestClocks(t *testing.T) {
	w, _ := bench(1)
	w.profile.drift = 0.04
	m := w.machines[1]
	m.boot()
	before := m.clock()
	w.now += 100 * time.Second
	if ran := m.clock() - before; ran < 96*time.Second || ran > 104*time.Second || ran == 100*time.Second {
		t.Error(ran)
	}
}
