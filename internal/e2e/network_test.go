package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"samovar/internal/dev"
	"samovar/internal/nbd"
)

// network gives every node a network namespace of its own, joined by a bridge on which the test is, too.
//
//	test ── bridge ─┬─ veth ── namespace of n1
//	                ├─ veth ── namespace of n2
//	                └─ veth ── namespace of n3
//
// A direction is cut by a false address of the neighbour: packets vanish on the wire, nobody is told.
type network struct {
	t     *testing.T
	name  string // of the bridge, and the beginning of all other names
	hosts []string
}

// newNetwork makes namespaces for n nodes; the test's end removes them. which tells networks of this process apart.
func newNetwork(t *testing.T, which, n int) *network {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("NOT RUN: needs root for network namespaces")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("NOT RUN: ip is not installed (apt-get install iproute2)")
	}
	w := &network{t: t, name: fmt.Sprintf("e2e%d%c", os.Getpid(), rune('a'+which))}
	// One of the networks of 16 addresses in the range for tests of networks (RFC 2544).
	number := os.Getpid()*4 + which
	at := netip.AddrFrom4([4]byte{198, byte(18 + number>>12&1), byte(number >> 4), byte(number << 4)}).Next()
	t.Cleanup(w.remove)
	w.ip("link", "add", w.name, "type", "bridge")
	w.ip("addr", "add", at.String()+"/28", "dev", w.name)
	w.ip("link", "set", w.name, "up")
	for i := range n {
		at = at.Next()
		w.hosts = append(w.hosts, at.String())
		space, outer := w.space(i), w.outer(i)
		w.ip("netns", "add", space)
		w.ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", space)
		w.ip("link", "set", outer, "master", w.name, "up")
		w.ip("-n", space, "addr", "add", at.String()+"/28", "dev", "eth0")
		w.ip("-n", space, "link", "set", "eth0", "up")
		w.ip("-n", space, "link", "set", "lo", "up")
	}
	return w
}

func (w *network) space(i int) string { return fmt.Sprintf("%s-n%d", w.name, i+1) }

func (w *network) outer(i int) string { return fmt.Sprintf("%s.%d", w.name, i) }

func (w *network) ip(args ...string) {
	w.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		w.t.Fatalf("ip %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// remove removes everything that was made.
func (w *network) remove() {
	for i := range w.hosts {
		// A socket that still has something to send keeps a namespace for a while, and what is in it.
		if out, err := exec.Command("ip", "link", "del", w.outer(i)).CombinedOutput(); err != nil {
			w.t.Errorf("remove interface: %v %s", err, out)
		}
		if out, err := exec.Command("ip", "netns", "del", w.space(i)).CombinedOutput(); err != nil {
			w.t.Errorf("remove network namespace: %v %s", err, out)
		}
	}
	if out, err := exec.Command("ip", "link", "del", w.name).CombinedOutput(); err != nil {
		w.t.Errorf("remove bridge: %v %s", err, out)
	}
}

// options put the nodes of a cluster into the namespaces.
func (w *network) options() dev.Options {
	return dev.Options{Nodes: len(w.hosts), Pools: true, Hosts: w.hosts, Exec: func(node int, cmd *exec.Cmd) *exec.Cmd {
		in := exec.Command("ip", append([]string{"netns", "exec", w.space(node)}, cmd.Args...)...) // it becomes the node
		in.Stdout, in.Stderr, in.SysProcAttr = cmd.Stdout, cmd.Stderr, cmd.SysProcAttr
		return in
	}}
}

// cut makes packets from one node to another vanish; nodes are counted from 0.
func (w *network) cut(from, to int) {
	w.t.Helper()
	w.ip("-n", w.space(from), "neigh", "replace", w.hosts[to], "lladdr", "02:00:00:00:00:fe", "dev", "eth0", "nud", "permanent")
}

// join undoes cut.
func (w *network) join(from, to int) {
	w.t.Helper()
	w.ip("-n", w.space(from), "neigh", "del", w.hosts[to], "dev", "eth0")
}

// The link between the engine and a replica is cut, both ways and each way alone: I/O goes on within the ping
// time-out, and when the link is whole again so is the volume.
func TestLinkCut(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, 0, 3)
	r := start(t, n.options())
	r.create("tea", 64*mib, "n1", "n2")
	r.attach("tea", "n1")
	w := r.run(load{export: "tea", addresses: r.addresses("n1"), size: 16 * mib})
	for _, c := range []struct {
		name string
		ways [][2]int
	}{
		{"both ways", [][2]int{{0, 1}, {1, 0}}},
		{"to the replica", [][2]int{{0, 1}}},
		{"from the replica", [][2]int{{1, 0}}},
	} {
		w.progress(300)
		w.pauses()
		for _, way := range c.ways {
			n.cut(way[0], way[1])
		}
		w.progress(500)
		p := w.pauses()
		if p > ping+2*time.Second {
			t.Errorf("%s: I/O stood still for %v", c.name, p)
		}
		r.degraded("tea")
		w.progress(500)
		for _, way := range c.ways {
			n.join(way[0], way[1])
		}
		healed := time.Now()
		r.redundant("tea")
		t.Logf("%s: I/O stood still for %v; whole %v after the link was", c.name, p, time.Since(healed))
	}
	w.progress(200)
	w.verify(false)
	r.recovered("tea")
}

// The engine's node is cut off from all others, but not from its client. The volume is attached elsewhere and written
// to. The old node must not serve anything meanwhile, nor afterwards.
func TestEngineCutOff(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, 1, 3)
	r := start(t, n.options())
	const size = 8 * mib
	r.create("tea", 64*mib, "n1", "n2")
	r.attach("tea", "n1")
	w := r.run(load{export: "tea", addresses: r.addresses("n1"), size: size})
	w.progress(500)
	for _, other := range []int{1, 2} {
		n.cut(0, other)
		n.cut(other, 0)
	}
	w.wait("I/O stands still", patience, func() bool { return time.Since(w.last) > 2*ping })
	old := w.abandon(r.addresses("n2"))
	sent := writeOld(old, size)
	w.progress(1000)
	w.verify(false)
	reads := w.readOld(old, size)
	select {
	case err := <-reads[0].end:
		if err == nil {
			t.Error("the node that is cut off answers reads")
		}
	case <-time.After(2 * ping): // the story: nothing comes
	}
	for _, other := range []int{1, 2} {
		n.join(0, other)
		n.join(other, 0)
	}
	r.holder("tea", "n2")
	w.judgeOld(reads)
	for _, o := range sent {
		if err := <-o.end; err == nil {
			t.Errorf("the write at %d was sent when the old node was cut off, and acknowledged", o.request.Offset)
		}
	}
	w.judgeLate()
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
	r.untouched(size, len(sent))
	w.release()
	w.progress(200)
	w.verify(false)
	r.recovered("tea")
	r.untouched(size, len(sent))
}
