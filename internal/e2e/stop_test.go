package e2e

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"samovar/internal/block"
	"samovar/internal/dev"
	"samovar/internal/nbd"
)

// A replica's node stands still: I/O goes on within the ping time-out, and the node comes back by itself.
func TestReplicaNodeStopped(t *testing.T) {
	t.Parallel()
	r := start(t, dev.Options{Nodes: 3, Pools: true})
	r.create("tea", 64*mib, "n1", "n2")
	r.attach("tea", "n1")
	w := r.run(load{export: "tea", addresses: r.addresses("n1"), size: 16 * mib})
	w.progress(500)
	w.pauses()

	r.signal("n2", syscall.SIGSTOP)
	w.progress(1000)
	p := w.pauses()
	t.Logf("I/O stood still for %v", p)
	if p > ping+2*time.Second {
		t.Errorf("I/O stood still for %v with a ping time-out of %v", p, ping)
	}
	r.degraded("tea")
	w.progress(500)
	r.signal("n2", syscall.SIGCONT)
	r.redundant("tea")
	w.progress(200)
	w.verify(false)
	r.recovered("tea")
}

// The engine's node stands still for more than three leases. The volume is attached elsewhere and written to. When the
// old node goes on, every write that was in flight there is refused and no read through it is stale.
func TestEngineNodeStopped(t *testing.T) {
	t.Parallel()
	const size = 8 * mib
	r := start(t, dev.Options{Nodes: 3, Pools: true})
	r.create("tea", 64*mib, "n1", "n2")
	r.attach("tea", "n1")
	w := r.run(load{export: "tea", addresses: r.addresses("n1"), size: size, depth: 64, rate: 6000})
	w.progress(500)

	stopped := time.Now()
	r.signal("n1", syscall.SIGSTOP)
	w.wait("requests are caught in flight", patience, func() bool {
		return len(w.flight) == w.load.depth && time.Since(w.last) > ping/2
	})
	old := w.abandon(r.addresses("n2"))
	sent := writeOld(old, size) // certainly after it stopped
	w.progress(3000)            // new data, all over what the old node knows
	w.verify(false)             // settles what became of the writes in flight
	for time.Since(stopped) < 3*ping {
		time.Sleep(10 * time.Millisecond) // the story: three leases
	}

	// Some reads wait in the old node's socket while it stands still, others come when it runs again.
	early := w.readOld(old, size)
	r.signal("n1", syscall.SIGCONT)
	late := w.readOld(old, size)
	w.judgeOld(early, late)
	w.wait("every old request is answered", patience, func() bool { return len(w.late) >= w.load.depth })
	w.judgeLate()
	for _, o := range sent {
		if err := <-o.end; err == nil {
			t.Errorf("the write at %d was sent when the old node stood still, and acknowledged by it after it was fenced", o.request.Offset)
		}
	}
	old.Close()

	r.until("the old node names the new holder", patience, func(ctx context.Context) error {
		d, err := nbd.Dial(ctx, r.addresses("n1")[0], "tea")
		if err == nil {
			d.Close()
			t.Fatal("the old node serves the volume while the new one does")
		}
		if !strings.Contains(err.Error(), "n2") {
			return err
		}
		return nil
	})
	w.verify(false)
	r.untouched(size, len(sent))
	w.release()
	w.progress(200)
	w.verify(false)
	r.recovered("tea")
	r.untouched(size, len(sent))
}

// writeOld sends writes to a part of the volume that nobody else writes to.
func writeOld(d block.Device, from uint64) []oldRequest {
	var out []oldRequest
	pool := block.NewPool()
	for i := range uint64(32) {
		q := &block.Request{Op: block.Write, Offset: from + i<<12, Length: 4096, Data: pool.Get(4096)}
		for k := range uint64(8) {
			stamp(q.Data.Bytes()[k*sectorBytes:][:sectorBytes], 1<<40, q.Offset/sectorBytes+k)
		}
		out = append(out, oldRequest{q, begin(d, q)})
	}
	return out
}

// untouched reads what writeOld has tried to write.
func (r *rig) untouched(from uint64, n int) {
	r.t.Helper()
	d, err := nbd.Dial(r.t.Context(), r.addresses("n2")[0], "tea")
	if err != nil {
		r.t.Fatal(err)
	}
	defer d.Close()
	data, err := read(d, from, uint64(n)<<12)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := newModel(from, uint64(n)<<12).check(0, data.Bytes(), false); err != nil {
		r.t.Errorf("a write of the old node happened after it was fenced: %v", err)
	}
}

// oldRequest is a request through a session of a node that is no longer the volume's.
type oldRequest struct {
	request *block.Request
	end     <-chan error
}

// readOld reads everything through an old session, without waiting.
func (w *workload) readOld(d block.Device, size uint64) []oldRequest {
	var out []oldRequest
	for at := uint64(0); at < size; at += 256 << 10 {
		q := &block.Request{Op: block.Read, Offset: at, Length: 256 << 10}
		out = append(out, oldRequest{q, begin(d, q)})
	}
	return out
}

// judgeOld waits for old reads: they fail, or wait until the session is closed, or bring what is true now.
func (w *workload) judgeOld(batches ...[]oldRequest) {
	w.t.Helper()
	failed, waiting, answered := 0, 0, 0
	deadline := time.After(5 * time.Second)
	for _, batch := range batches {
		for _, o := range batch {
			select {
			case err := <-o.end:
				if err != nil {
					failed++
					continue
				}
				answered++
				w.mu.Lock()
				err = w.model.check(o.request.Offset/sectorBytes, o.request.Data.Bytes(), false)
				w.mu.Unlock()
				if err != nil {
					w.t.Errorf("a read through the old node is stale: %v", err)
				}
			case <-deadline:
				waiting++
				deadline = time.After(0)
			}
		}
	}
	w.t.Logf("old reads: %d failed, %d were answered with what is true, %d wait", failed, answered, waiting)
}

// judgeLate looks at answers to requests that were in flight when the old node stopped. A write may only be answered
// as done if it was done: on every copy, before the new engine fenced them.
func (w *workload) judgeLate() {
	w.t.Helper()
	counts := map[string]int{}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range w.late {
		counts[fmt.Sprintf("%v ok=%t", a.op, a.err == nil)]++
		if a.err == nil && w.model.never[a.number] {
			w.t.Errorf("write %d was acknowledged by the old node and did not happen", a.number)
		}
	}
	w.t.Logf("answers after the old node went on: %v", counts)
}
