package e2e

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"samovar/internal/dev"
)

// The majority of the cluster store is lost while all replicas are healthy: I/O goes on. Only when a replica is lost as
// well I/O waits, until the one or the other returns.
func TestStoreLost(t *testing.T) {
	t.Parallel()
	r := start(t, dev.Options{Nodes: 4, Pools: true}) // n1 to n3 are members
	r.create("tea", 64*mib, "n3", "n4")
	r.attach("tea", "n4")
	w := r.run(load{export: "tea", addresses: r.addresses("n4"), size: 16 * mib})
	w.progress(500)
	w.pauses()

	r.kill("n1", "n2")
	r.until("the loss of the store is shown", patience, func(ctx context.Context) error {
		s, err := r.api.Status(ctx)
		if err == nil && s.Store == "ok" {
			err = errors.New("it is not")
		}
		return err
	})
	w.progress(4000) // several leases
	if p := w.pauses(); p > ping {
		t.Errorf("I/O stood still for %v, although all replicas are there", p)
	}

	r.signal("n3", syscall.SIGSTOP)
	w.wait("I/O stands still", patience, func() bool { return time.Since(w.last) > 2*ping })
	r.suspended("tea", "cluster store")
	returned := time.Now()
	r.signal("n3", syscall.SIGCONT)
	w.progress(1)
	t.Logf("I/O went on %v after the replica came back", time.Since(returned))
	w.progress(500)

	r.signal("n3", syscall.SIGSTOP)
	w.wait("I/O stands still", patience, func() bool { return time.Since(w.last) > 2*ping })
	r.suspended("tea", "cluster store")
	returned = time.Now()
	r.restart("n1", "n2")
	w.progress(1)
	t.Logf("I/O went on %v after the store's nodes were started", time.Since(returned))
	r.signal("n3", syscall.SIGCONT)
	r.redundant("tea")
	w.progress(200)
	w.verify(false)
	r.recovered("tea")
}

// Every node is restarted in order, one after the other, under load.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	r := start(t, dev.Options{Nodes: 3, Pools: true})
	r.create("tea", 64*mib, "n1", "n2")
	r.attach("tea", "n1")
	w := r.run(load{export: "tea", addresses: r.addresses("n1", "n2", "n3"), size: 16 * mib})
	for _, n := range r.Nodes {
		w.progress(300)
		w.pauses()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		began := time.Now()
		if err := n.Stop(ctx); err != nil {
			t.Fatal(err)
		}
		cancel()
		took := time.Since(began)
		w.progress(300)
		r.restart(n.Name)
		r.redundant("tea")
		r.healthy()
		t.Logf("%s ended in %v; I/O stood still for %v", n.Name, took, w.pauses())
	}
	w.verify(false)
	r.recovered("tea")
	w.end()
	// The attachment was explicit, on n1: it is there again when no client holds the volume elsewhere.
	r.until("the volume is attached on n1 again", patience, func(ctx context.Context) error {
		v, err := r.api.Volume(ctx, "tea")
		if err == nil && (v.Holder != "n1" || v.Mode != "explicit") {
			err = errors.New("held by " + v.Holder + ", " + v.Mode)
		}
		return err
	})
}
