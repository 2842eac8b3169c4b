package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"samovar/internal/block"
	"samovar/internal/dev"
	"samovar/internal/fault"
	"samovar/internal/resource"
)

// The pool of one copy is full: writes that need space are refused, everything else goes on, no redundancy is lost, and
// when there is space again writes succeed.
func TestPoolFull(t *testing.T) {
	t.Parallel()
	small := smallDisk(t, 192*mib)
	r := start(t, dev.Options{Nodes: 3, Pools: true})
	if _, err := r.api.CreatePool(t.Context(), resource.NewPool{Node: "n2", Dir: filepath.Join(small, "pool"), Name: "pool-small"}); err != nil {
		t.Fatal(err)
	}
	r.until("the small pool is online", patience, func(ctx context.Context) error {
		p, err := r.api.Pool(ctx, "pool-small")
		if err == nil && !p.Online {
			err = errors.New(p.Cause)
		}
		return err
	})
	ballast := filepath.Join(small, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 16*mib), 0o600); err != nil {
		t.Fatal(err)
	}
	r.create("tea", 256*mib, "n1", "small")
	r.create("milk", 16*mib, "n1", "n2")
	r.attach("tea", "n1")
	r.attach("milk", "n1")
	other := r.run(load{export: "milk", addresses: r.addresses("n1"), size: 8 * mib, rate: 500})
	d := r.open(t, r.addresses("n1")[0], "tea")
	for at := uint64(0); at < 4*mib; at += bigBytes {
		if err := <-begin(d, big(at)); err != nil { // zeroes that take space, so that kept only overwrites
			t.Fatal(err)
		}
	}
	kept := r.run(load{export: "tea", addresses: r.addresses("n1"), size: 4 * mib, rate: 500, writes: true})
	other.progress(100)
	kept.progress(100)

	refused := 0
	for at := uint64(8 * mib); at < 256*mib; at += bigBytes {
		err := <-begin(d, big(at))
		switch {
		case fault.Is(err, fault.NoSpace):
			refused++
		case err != nil:
			t.Fatalf("write at %d: %v", at, err)
		}
	}
	if refused == 0 {
		t.Fatal("no write was refused on a full disk")
	}
	t.Logf("%d writes were refused", refused)
	v := r.info("tea")
	if !v.Redundant || v.State != "attached" || v.Generation != 1 {
		t.Errorf("a full disk cost something: %s", indented(v))
	}
	kept.progress(200) // overwrites
	other.progress(100)
	kept.verify(false)
	r.equal("tea")

	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	r.until("writes succeed when there is space again", patience, func(context.Context) error { return <-begin(d, big(36*mib)) })
	if err := <-begin(d, &block.Request{Op: block.Flush}); err != nil {
		t.Error(err)
	}
	kept.release()
	kept.progress(100)
	kept.verify(false)
	other.verify(false)
	r.recovered("tea")
	r.recovered("milk")
}

const bigBytes = 256 << 10

// big makes a write of zeroes.
func big(offset uint64) *block.Request {
	q := &block.Request{Op: block.Write, Offset: offset, Length: bigBytes, Data: block.NewPool().Get(bigBytes)}
	clear(q.Data.Bytes())
	return q
}

// smallDisk mounts a file system of its own until the test ends.
func smallDisk(t *testing.T, size int) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("NOT RUN: needs root to mount a small file system")
	}
	dir, err := os.MkdirTemp("", "e2e-disk-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	if err := syscall.Mount("samovar-e2e", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		t.Skipf("NOT RUN: cannot mount a small file system: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}
