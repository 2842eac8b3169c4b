package e2e

import (
	"context"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"samovar/internal/block"
	"samovar/internal/dev"
	"samovar/internal/fault"
)

// Random bytes at every port end that connection and nothing else.
func TestGarbage(t *testing.T) {
	t.Parallel()
	r := start(t, dev.Options{Nodes: 3, Pools: true})
	r.create("tea", 16*mib, "n1", "n2")
	r.attach("tea", "n1")
	w := r.run(load{export: "tea", addresses: r.addresses("n1"), size: 8 * mib, rate: 500})
	w.progress(100)
	w.pauses()
	random := rand.NewChaCha8([32]byte{7})
	for range 5 {
		for _, n := range r.Nodes {
			garbage(t, random, "unix", n.Config.Socket)
			for _, at := range []string{n.Config.API, n.Config.Data, n.Config.NBD, n.Config.Etcd.Clients[n.Name], n.Config.Etcd.Members[n.Name]} {
				garbage(t, random, "tcp", at)
			}
		}
	}
	w.progress(200)
	if p := w.pauses(); p > ping {
		t.Errorf("garbage made I/O stand still for %v", p)
	}
	if v := r.info("tea"); v.Generation != 1 || v.Epoch != 1 {
		t.Errorf("garbage changed the volume: epoch %d, generation %d", v.Epoch, v.Generation)
	}
	w.verify(false)
	r.recovered("tea")
}

// garbage sends random bytes, some of them after a beginning that looks right, and leaves.
func garbage(t *testing.T, random *rand.ChaCha8, network, address string) {
	t.Helper()
	for _, opening := range []string{"", "GET /v1/status HTTP/1.1\r\n", "NBDMAGICIHAVEOPT", "\x00\x00\x00\x03IHAVEOPT", "SAMOVAR", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"} {
		c, err := net.DialTimeout(network, address, 5*time.Second)
		if err != nil {
			t.Errorf("a node does not listen any more: %v", err)
			return
		}
		b := make([]byte, 64<<10)
		random.Read(b)                                  // never fails
		c.SetDeadline(time.Now().Add(time.Second))      // sockets have deadlines
		c.Write([]byte(opening))                        // it may be cut off at any byte
		c.Write(b[:1+random.Uint64()%uint64(len(b)-1)]) // so may this
		c.Close()
	}
}

// Wrong sizes, names and places are refused with words that name them, before anything is done.
func TestWrongArguments(t *testing.T) {
	t.Parallel()
	r := start(t, dev.Options{Nodes: 2, Pools: true})
	const usage, missing, failure = 2, 3, 1
	for _, c := range []struct {
		code int
		says string
		args string
	}{
		{usage, "size", "volume create tea"},
		{usage, "above zero", "volume create tea --size 0"},
		{usage, "-1", "volume create tea --size -1"},
		{usage, "12x", "volume create tea --size 12x"},
		{usage, "513", "volume create tea --size 513"},
		{usage, "16384PiB", "volume create tea --size 16384PiB"},
		{usage, "Tea", "volume create Tea --size 1MiB"},
		{usage, "a/b", "volume create a/b --size 1MiB"},
		{usage, "tea@ro", "volume create tea@ro --size 1MiB"},
		{usage, "63", "volume create " + strings.Repeat("t", 64) + " --size 1MiB"},
		{usage, "replicas", "volume create tea --size 1MiB --replicas 0"},
		{usage, "3000000", "volume create tea --size 8MiB --extent-size 3000000"},
		{usage, "nonsense", "volume nonsense"},
		{usage, "relative/dir", "pool create n1 relative/dir --name p9"},
		{missing, "coffee", "volume info coffee"},
		{missing, "coffee", "volume attach coffee"},
		{missing, "coffee", "volume delete coffee --yes"},
		{missing, "n9", "node info n9"},
		{missing, "n9", "pool create n9 /tmp/e2e-never --name p9"},
	} {
		out, code := r.samovar(strings.Fields(c.args)...)
		if code != c.code || !strings.Contains(out, c.says) {
			t.Errorf("samovar %s: exit code %d, want %d; output, want %q:\n%s", c.args, code, c.code, c.says, out)
		}
	}
	for _, c := range []string{"volume create tea --size 1MiB --replicas 3", "volume create tea --size 8PiB --extent-size 1GiB", "volume create tea --size 1MiB --pool pool-n1,pool-n9"} {
		if out, code := r.samovar(strings.Fields(c)...); code == 0 || len(out) < 20 {
			t.Errorf("samovar %s: exit code %d\n%s", c, code, out)
		}
	}
	if volumes, err := r.api.Volumes(t.Context()); err != nil || len(volumes) > 0 {
		t.Errorf("volumes were made: %s %v", indented(volumes), err)
	}
	r.testWrongRequests(t)
}

// Our client refuses what lies past the end itself; package nbd tests with raw requests that the server does too.
func (r *rig) testWrongRequests(t *testing.T) {
	r.create("tea", mib, "n1", "n2")
	if out, code := r.samovar("volume", "create", "tea", "--size", "1MiB"); code == 0 || !strings.Contains(out, "tea") {
		t.Errorf("a second volume of the name: exit code %d\n%s", code, out)
	}
	d := r.open(t, r.addresses("n1")[0], "tea")
	for _, q := range []*block.Request{
		{Op: block.Read, Offset: mib, Length: 512}, {Op: block.Read, Offset: mib - 512, Length: 1024},
		{Op: block.Trim, Offset: mib, Length: 512}, {Op: block.Zero, Offset: 1 << 62, Length: 512},
	} {
		if err := <-begin(d, q); !fault.Is(err, fault.Invalid) {
			t.Errorf("%v of %d bytes at %d: %v", q.Op, q.Length, q.Offset, err)
		}
	}
	write(t, d, mib-4096, 1)
	holds(t, d, mib-4096, 1)
	d.Close()
	r.until("the volume is deleted", patience, func(ctx context.Context) error { return r.api.DeleteVolume(ctx, "tea") })
}
