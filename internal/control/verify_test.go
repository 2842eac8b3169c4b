package control

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"samovar/internal/block"
	"samovar/internal/fault"
)

// corrupt changes one byte of a volume's data on a pool behind everybody's back.
func corrupt(t *testing.T, n *node, pool string, at int64) {
	t.Helper()
	dirs := n.replicaDirs(pool)
	if len(dirs) != 1 {
		t.Fatalf("%v", dirs)
	}
	f, err := os.OpenFile(filepath.Join(dirs[0], "data"), os.O_RDWR, 0)
	check(t, err)
	defer f.Close()
	_, err = f.WriteAt([]byte{0xee}, at)
	check(t, err)
	check(t, f.Sync())
}

func TestVerify(t *testing.T) {
	t.Parallel()
	c := testCluster(t, "a", "b")
	c.pools("a", "b")
	a, b := c.nodes["a"], c.nodes["b"]
	const size = 37<<20 + 512 // the last step and the last piece are short
	c.volume(a, "tea", size, "pa", "pb")
	d := a.open("tea")
	write(t, d, 0, 1, 3<<20)
	write(t, d, size-4096, 2, 4096)
	check(t, d.Close())
	b.state("tea", "detached")

	var done atomic.Uint64
	v, err := b.Verify(t.Context(), "tea", func(n, todo uint64) {
		if todo != size || n <= done.Swap(n) {
			t.Errorf("progress %d of %d", n, todo)
		}
	})
	if err != nil || !v.Equal || v.Bytes != size || v.Copies != 2 || done.Load() != size {
		t.Fatalf("%+v %v", v, err)
	}
	await(t, "a sees the result, and the volume is let go", func() bool {
		r, err := a.Volume(t.Context(), "tea")
		return err == nil && r.Verified != nil && r.Verified.Equal && r.State == "detached"
	})

	corrupt(t, b, "pb", 2<<20+70000)
	corrupt(t, b, "pb", size-1)
	d = a.open("tea") // compared on the holder, under I/O
	v, err = b.Verify(t.Context(), "tea", nil)
	check(t, err)
	check(t, d.Close())
	if v.Equal || len(v.Differences) != 2 {
		t.Fatalf("%+v", v)
	}
	first, second := v.Differences[0], v.Differences[1]
	if first.Offset != 2<<20+64<<10 || first.Length != 64<<10 || first.Sums["pa"] == first.Sums["pb"] || len(first.Sums) != 2 {
		t.Fatalf("%+v", first)
	}
	if end := second.Offset + second.Length; end != size || second.Length > 64<<10 {
		t.Fatalf("%+v", second)
	}
	await(t, "the difference is told", func() bool {
		s, err := a.Status(t.Context())
		return err == nil && slices.ContainsFunc(s.Problems, func(p string) bool { return strings.Contains(p, "copies differed") }) &&
			slices.Contains(a.reasons("volume tea"), "copies-differ")
	})
}

// A comparison is not ended as idle, and writes beside it neither break it nor are lost.
func TestVerifyUnderWrites(t *testing.T) {
	t.Parallel()
	c := testCluster(t, "a", "b")
	c.pools("a", "b")
	a := c.nodes["a"]
	c.volume(a, "tea", 64<<20, "pa", "pb")
	h := holdRecovery(t, a, "tea")
	d := a.open("tea")
	stop := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := uint64(0); ; i++ {
			select {
			case <-stop:
				return
			default:
				write(t, d, i%1000*64<<10, byte(i), 64<<10)
			}
		}
	})
	for range 3 {
		v, err := a.Verify(t.Context(), "tea", nil)
		if err != nil || !v.Equal {
			t.Errorf("%+v %v", v, err)
		}
	}
	close(stop)
	writer.Wait()
	check(t, d.Close())
	a.leave(h)
	a.state("tea", "detached")
}

// A slow comparison of a volume that nobody has attached keeps it, for longer than an idle one is kept.
func TestVerifyIsNoIdleRecovery(t *testing.T) {
	t.Parallel()
	c := testCluster(t, "a", "b")
	c.pools("a", "b")
	a := c.nodes["a"]
	c.volume(a, "tea", 16<<20, "pa", "pb")
	looked := make(chan struct{})
	var once sync.Once
	c.peers.set(func(_, call string) error {
		if call == "checksum" {
			once.Do(func() { // several looks of the recovery pass
				time.Sleep(4 * a.opts.RecoveryPace)
				close(looked)
			})
		}
		return nil
	}, nil)
	v, err := a.Verify(t.Context(), "tea", nil)
	if err != nil || !v.Equal {
		t.Fatalf("%+v %v", v, err)
	}
	<-looked
	a.state("tea", "detached")

	// Cut off from one copy it says so.
	c.peers.set(func(_, call string) error {
		if call == "checksum" {
			return fault.New(fault.Unavailable, "checksum on node b", "no answer")
		}
		return nil
	}, nil)
	_, err = a.Verify(t.Context(), "tea", nil)
	refused(t, err, fault.Unavailable, "node b")
	_, err = a.Verify(t.Context(), "cup", nil)
	refused(t, err, fault.NotFound, "cup")
}

// A copy that leaves while it is compared makes the comparison void, not the copies different.
func TestVerifyWhileCopyLeaves(t *testing.T) {
	t.Parallel()
	c := testCluster(t, "a", "b", "d")
	c.pools("a", "b")
	a := c.nodes["d"]
	c.volume(a, "tea", 16<<20, "pa", "pb")
	d := a.open("tea")
	write(t, d, 0, 1, 4096)
	var once sync.Once
	c.peers.set(func(node, call string) error {
		if call == "checksum" && node == "a" {
			once.Do(func() {
				c.nodes["b"].kill()
				b := block.NewPool().Get(4096)
				clear(b.Bytes())
				// Behind what is held: it is answered when b is out.
				if _, err := request(t, d, &block.Request{Op: block.Write, Offset: 16<<20 - 4096, Length: 4096, Data: b}); err == nil {
					t.Log("written beside a hold")
				}
			})
		}
		return nil
	}, nil)
	_, err := a.Verify(within(t, 30*time.Second), "tea", nil)
	if err == nil {
		t.Fatal("a comparison with a copy that left")
	}
	check(t, d.Close())
}
