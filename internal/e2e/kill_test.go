package e2e

import (
	"testing"
	"time"

	"samovar/internal/dev"
)

// The engine's node is killed under load. Clients go on at another node, nothing acknowledged is lost, and the node
// that returns receives only what it missed.
func TestEngineNodeKilled(t *testing.T) {
	t.Parallel()
	const size = 256 * mib
	r := start(t, dev.Options{Nodes: 3, Pools: true})
	r.create("tea", size, "n1", "n2")
	r.attach("tea", "n1")
	full := r.run(load{export: "tea", addresses: r.addresses("n1", "n2"), from: 32 * mib, size: size - 32*mib, most: mib, writes: true})
	full.progress(700) // so that there is much that need not be copied
	full.verify(false)
	w := r.run(load{export: "tea", addresses: r.addresses("n1", "n2"), size: 32 * mib})
	w.progress(4000) // long enough for the rest to be forgotten by the replicas' logs
	w.pauses()

	r.kill("n1")
	w.progress(500)
	t.Logf("I/O stood still for %v", w.pauses())
	w.verify(false)
	full.verify(false)
	if v := r.info("tea"); v.Holder != "n2" {
		t.Errorf("the volume is held by %s", v.Holder)
	}
	w.release()
	w.progress(500)

	r.restart("n1")
	v := r.redundant("tea")
	t.Logf("copied %d KiB of %d MiB to bring the killed node back", v.Copied>>10, size/mib)
	if v.Copied == 0 || v.Copied > size/4 {
		t.Errorf("%d bytes were copied to bring a node back that missed at most %d", v.Copied, 32*mib)
	}
	w.progress(200)
	w.verify(false)
	full.verify(false)
	r.recovered("tea")
}

// A replica's node is killed under load: I/O goes on within the ping time-out.
func TestReplicaNodeKilled(t *testing.T) {
	t.Parallel()
	const size = 128 * mib
	r := start(t, dev.Options{Nodes: 3, Pools: true})
	r.create("tea", size, "n1", "n2")
	r.attach("tea", "n1")
	w := r.run(load{export: "tea", addresses: r.addresses("n1"), size: 16 * mib})
	w.progress(1000)
	w.pauses()

	r.kill("n2")
	w.progress(1000)
	if p := w.pauses(); p > ping+2*time.Second {
		t.Errorf("I/O stood still for %v", p)
	} else {
		t.Logf("I/O stood still for %v", p)
	}
	before := r.info("tea")
	if before.Redundant {
		t.Error("the volume is called redundant without one of its copies")
	}
	r.restart("n2")
	v := r.redundant("tea")
	if v.Copied == 0 || v.Copied > size/4 {
		t.Errorf("%d bytes were copied for a replica that missed at most %d", v.Copied, 16*mib)
	}
	w.progress(200)
	w.verify(false)
	r.recovered("tea")
}

// Two of three nodes are killed one after the other: the cluster store is lost, I/O waits, and goes on by itself when
// one of them returns.
func TestTwoOfThreeKilled(t *testing.T) {
	t.Parallel()
	r := start(t, dev.Options{Nodes: 3, Pools: true})
	r.create("tea", 64*mib, "n1", "n2")
	r.attach("tea", "n1")
	w := r.run(load{export: "tea", addresses: r.addresses("n1"), size: 16 * mib})
	w.progress(500)

	r.kill("n3")
	w.progress(500)
	r.kill("n2") // a replica, and with it the majority
	w.wait("I/O stands still", patience, func() bool { return time.Since(w.last) > 3*ping })
	r.suspended("tea", "cluster store")
	if out, code := r.samovar("volume", "info", "tea"); code != 0 {
		t.Errorf("volume info ended with %d: %s", code, out)
	}

	r.restart("n3") // it holds no copy: only the majority returns
	w.progress(500)
	t.Logf("I/O stood still for %v", w.pauses())
	r.restart("n2")
	w.progress(200)
	w.verify(false)
	r.recovered("tea")
}

// All nodes are killed at once and restarted: nothing flushed is lost, and the copies are equal.
func TestAllKilled(t *testing.T) {
	t.Parallel()
	r := start(t, dev.Options{Nodes: 3, Pools: true})
	r.create("tea", 64*mib, "n1", "n2")
	r.attach("tea", "n1")
	w := r.run(load{export: "tea", addresses: r.addresses("n1", "n2", "n3"), size: 32 * mib})
	w.progress(2000)

	done := make(chan error, len(r.Nodes))
	for _, n := range r.Nodes {
		go func() { done <- n.Kill() }()
	}
	for range r.Nodes {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	r.restart("n1", "n2", "n3")
	w.verify(true)
	w.release()
	w.progress(500)
	w.verify(false)
	r.recovered("tea")
}

// Two nodes and a witness: the loss of a node costs redundancy and nothing else, and the volume can be attached where
// it is left.
func TestNodeOfTwoKilled(t *testing.T) {
	t.Parallel()
	r := start(t, dev.Options{Nodes: 2, Witness: true, Pools: true})
	r.create("tea", 64*mib, "n1", "n2")
	w := r.run(load{export: "tea", addresses: r.addresses("n1", "n2"), size: 16 * mib})
	w.progress(500)
	w.pauses()
	r.kill("n1")
	w.progress(500)
	t.Logf("I/O stood still for %v", w.pauses())
	w.verify(false)
	w.release()
	r.restart("n1")
	r.redundant("tea")
	w.progress(200)
	w.verify(false)
	r.recovered("tea")
}
