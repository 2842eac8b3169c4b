package simulation

import (
	"testing"
	"time"

	"samovar/internal/fault"
	"samovar/internal/replication/replica"
	"samovar/internal/volume"
)

// What hangs does not end, everything else does; what was released does.
func TestHang(t *testing.T) {
	w, d := bench(1)
	var ended []uint64
	done := func(r replica.DiskResult) {
		if r.Status != fault.None {
			t.Error(r.Status)
		}
		ended = append(ended, r.Token)
	}
	d.hung[replica.DiskSync], d.hung[replica.SaveState] = true, true
	d.submit(replica.DiskRequest{Token: 1, Op: replica.DiskSync}, done)
	d.submit(replica.DiskRequest{Token: 2, Op: replica.SaveState, State: &volume.ReplicaState{}}, done)
	d.submit(replica.DiskRequest{Token: 3, Op: replica.SaveRecord, Record: &volume.ChangeRecord{}}, done) // the same lane
	d.submit(replica.DiskRequest{Token: 4, Op: replica.LogChange, Add: []uint64{7}}, done)
	w.settle(t)
	if len(ended) != 1 || ended[0] != 4 || !d.meta.logged(7) {
		t.Fatal("ended beside what hangs:", ended)
	}
	d.letGo()
	w.settle(t)
	if len(ended) != 4 {
		t.Fatal("ended in all:", ended)
	}
}

// A crash leaves of each lane what came first, whatever happens to the other lane.
func TestLanesCrashApart(t *testing.T) {
	outcomes := map[[2]bool]int{}
	for seed := range uint64(200) {
		w, d := bench(seed)
		d.hung[replica.SaveState], d.hung[replica.LogChange] = true, true
		d.submit(replica.DiskRequest{Op: replica.SaveState, State: &volume.ReplicaState{Prepared: 5}}, nil)
		d.submit(replica.DiskRequest{Op: replica.LogChange, Add: []uint64{7}}, nil)
		w.settle(t)
		d.losePower()
		outcomes[[2]bool{d.meta.state.Prepared == 5, d.meta.logged(7)}]++
	}
	if len(outcomes) != 4 {
		t.Fatal("state saved, log changed:", outcomes)
	}
}

func TestStorm(t *testing.T) {
	w, d := bench(1)
	for range syncsAtOnce {
		d.countSync()
	}
	if w.broken != "" {
		t.Fatal(w.broken)
	}
	d.countSync()
	if w.broken == "" {
		t.Fatal("more syncs at once than anything explains, and nobody says so")
	}
	w, d = bench(1)
	for range syncsTogether + 1 {
		w.now += time.Millisecond
		d.countSync()
	}
	if w.broken == "" {
		t.Fatal("more syncs within a second than anything explains, and nobody says so")
	}
}
