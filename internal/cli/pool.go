package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"samovar/internal/api/client"
	"samovar/internal/fault"
	"samovar/internal/resource"
)

func poolCommands(s *session) *cobra.Command {
	pools := group("pool", "Directories on disks that hold copies")
	pools.Example = "  samovar pool create n1 /srv/samovar/ssd1 --name ssd1\n  samovar pool list"
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the pools", Args: takes(),
		Example: "  samovar pool list\n  samovar pool list --watch\n  samovar pool list -o yaml",
		RunE: shown(s, func(ctx context.Context, c *client.Client, _ []string) ([]resource.Pool, error) { return c.Pools(ctx) },
			func(w io.Writer, pools []resource.Pool) { drawPools(w, pools) }, nil),
	}
	info := &cobra.Command{
		Use: "info POOL", Short: "Show one pool", Args: takes("POOL"), ValidArgsFunction: s.completePools(),
		Example: "  samovar pool info ssd1\n  samovar pool info ssd1 -o json",
		RunE: shown(s, func(ctx context.Context, c *client.Client, args []string) (resource.Pool, error) {
			return c.Pool(ctx, args[0])
		}, func(w io.Writer, p resource.Pool) { drawPool(w, p) },
			func([]string) hints { return hints{fault.NotFound: "see: samovar pool list"} }),
	}
	pools.AddCommand(s.lists(list), s.prints(poolCreate(s)), s.prints(info))
	return pools
}

func poolCreate(s *session) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use: "create NODE DIR --name NAME", Short: "Make a directory of a node a pool", Args: takes("NODE", "DIR"),
		Long: `Make a directory of a node a pool. The directory should be a file system of its own on one disk, because a
pool is lost as one. Its name is unique in the cluster.`,
		Example: "  samovar pool create n1 /srv/samovar/ssd1 --name ssd1",
		RunE: s.run(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if name == "" {
				return usage(cmd, fmt.Errorf("--name is missing, like --name ssd1"))
			}
			p, err := c.CreatePool(cmd.Context(), resource.NewPool{Node: args[0], Dir: args[1], Name: name})
			if err != nil {
				return advise(err, hints{fault.NotFound: "see: samovar node list", fault.Exists: "choose another name; see: samovar pool list"})
			}
			return s.print(p, func(w io.Writer) {
				fmt.Fprintf(w, "pool %s: created on node %s, %s free of %s\n", printable(p.Name), printable(p.Node), formatSize(p.Free), formatSize(p.Total))
			})
		}),
	}
	cmd.Flags().StringVar(&name, "name", "", "name of the pool, unique in the cluster")
	return cmd
}

func drawPools(w io.Writer, pools []resource.Pool) {
	t := newTable("NAME", "NODE", "STATE", ">SIZE", ">FREE", ">RESERVED", ">COPIES", "DIR", "CAUSE")
	for _, p := range pools {
		t.add(p.Name, p.Node, online(p.Online), formatSize(p.Total), formatSize(p.Free), formatSize(p.Reserved), fmt.Sprint(p.Replicas), p.Dir, p.Cause)
	}
	t.write(w)
}

func drawPool(w io.Writer, p resource.Pool) {
	t := newSheet()
	t.fact("Pool", p.Name)
	t.fact("ID", p.ID)
	t.fact("Node", p.Node)
	t.fact("State", online(p.Online))
	t.fact("Cause", p.Cause)
	t.fact("Directory", p.Dir)
	t.fact("File system", p.Kind)
	t.fact("Direct I/O", yes(p.Direct))
	t.fact("Size", formatSize(p.Total))
	t.fact("Free", formatSize(p.Free))
	t.fact("Reserved", formatSize(p.Reserved))
	t.fact("Copies", fmt.Sprint(p.Replicas))
	t.fact("Left over", strings.Join(p.Leftover, ", "))
	t.write(w)
}

func yes(is bool) string {
	if is {
		return "yes"
	}
	return "no"
}
