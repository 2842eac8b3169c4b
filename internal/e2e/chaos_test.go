package e2e

import (
	"context"
	"errors"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"samovar/internal/dev"
	"samovar/internal/resource"
)

// One node after the other is killed, stopped for a while or restarted, at random, while it and others still catch up
// from what came before. A node that holds the last whole copy is left alone, so nothing acknowledged may be lost.
func TestManyFaults(t *testing.T) {
	t.Parallel()
	faults := 12
	if testing.Short() {
		faults = 4
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	r := start(t, dev.Options{Nodes: 3, Pools: true})
	r.create("tea", 64*mib, "n1", "n2", "n3")
	w := r.run(load{export: "tea", addresses: r.addresses("n1", "n2", "n3"), size: 16 * mib})
	for range faults {
		w.progress(100 + random.IntN(600))
		node := r.spare(random)
		switch kind := random.IntN(4); kind {
		case 0, 1:
			t.Logf("kill %s", node)
			r.kill(node)
			if kind == 0 {
				w.progress(200)
			}
			r.restart(node)
		case 2:
			t.Logf("stop %s for a while", node)
			r.signal(node, syscall.SIGSTOP)
			time.Sleep(time.Duration(random.Int64N(int64(3 * ping)))) // the fault
			r.signal(node, syscall.SIGCONT)
		case 3:
			t.Logf("restart %s", node)
			r.stop(node)
			r.restart(node)
		}
	}
	w.progress(200)
	w.verify(false)
	r.recovered("tea")
	w.verify(false)
}

// spare waits until some node can be lost without the last whole copy: it picks one of those.
func (r *rig) spare(random *rand.Rand) string {
	r.t.Helper()
	name := ""
	r.until("a node can be spared", patience, func(ctx context.Context) error {
		nodes, err := r.api.Nodes(ctx)
		if err != nil {
			return err
		}
		v, err := r.api.Volume(ctx, "tea")
		if err != nil {
			return err
		}
		for _, n := range nodes {
			if !n.Online {
				return errors.New("node " + n.Name + " is not online")
			}
		}
		name = nodes[random.IntN(len(nodes))].Name
		if !coveredWithout(v, name) {
			return errors.New("not enough whole copies: " + indented(v.Replicas))
		}
		return nil
	})
	return name
}

func coveredWithout(v resource.Volume, node string) bool {
	for _, c := range v.Replicas {
		if c.Node != node && c.State == "in-sync" && c.Connected {
			return true
		}
	}
	return false
}
