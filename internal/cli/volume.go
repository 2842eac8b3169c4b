package cli

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"samovar/internal/api/client"
	"samovar/internal/fault"
	"samovar/internal/resource"
)

func volumeCommands(s *session) *cobra.Command {
	volumes := group("volume", "Block devices with copies")
	volumes.Example = `  samovar volume create tea --size 10GiB --replicas 2
  samovar volume attach tea
  samovar volume info tea
  samovar volume detach tea
  samovar volume delete tea`
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the volumes", Args: takes(),
		Long: `List the volumes. COPIES are the copies in sync and those wanted; SYNC says what the others lack; VERIFIED is
the result of the last comparison.`,
		Example: "  samovar volume list\n  samovar volume list --watch\n  samovar volume list -o json",
		RunE: shown(s, func(ctx context.Context, c *client.Client, _ []string) ([]resource.Volume, error) {
			return c.Volumes(ctx)
		},
			func(w io.Writer, all []resource.Volume) { drawVolumes(w, all) }, nil),
	}
	info := &cobra.Command{
		Use: "info VOLUME", Short: "Show one volume and its copies", Args: takes("VOLUME"), ValidArgsFunction: s.completeVolumes(),
		Example: "  samovar volume info tea\n  samovar volume info tea --watch\n  samovar volume info tea -o yaml",
		RunE: shown(s, func(ctx context.Context, c *client.Client, args []string) (resource.Volume, error) {
			return c.Volume(ctx, args[0])
		}, func(w io.Writer, v resource.Volume) { drawVolume(w, v, s.streams.Zone) },
			func([]string) hints { return volumeHints() }),
	}
	volumes.AddCommand(s.prints(volumeCreate(s)), s.lists(list), s.lists(info), s.prints(volumeDelete(s)),
		s.prints(volumeAttach(s)), s.prints(volumeDetach(s)), s.prints(volumeVerify(s)))
	return volumes
}

func volumeHints() hints { return hints{fault.NotFound: "see: samovar volume list"} }

func volumeCreate(s *session) *cobra.Command {
	var bytes, extent size
	var copies int
	var pools []string
	cmd := &cobra.Command{
		Use: "create VOLUME --size SIZE", Short: "Create a volume", Args: takes("VOLUME"),
		Long: `Create a volume. Its copies are placed on different nodes; --pool names the pools instead.

A name has 1 to 63 of a-z, 0-9 and '-'. Sizes are like 512MiB, 10GiB (10G for short), 1.5TiB, 10GB (decimal), or bytes.`,
		Example: `  samovar volume create tea --size 10GiB
  samovar volume create tea --size 10GiB --replicas 3
  samovar volume create tea --size 1TiB --pool ssd1,ssd2 --extent-size 256MiB`,
		RunE: s.run(func(cmd *cobra.Command, c *client.Client, args []string) error {
			switch {
			case !cmd.Flags().Changed("size"):
				return usage(cmd, fmt.Errorf("--size is missing, like --size 10GiB"))
			case len(pools) > 0 && !cmd.Flags().Changed("replicas"):
				copies = len(pools)
			}
			v, err := c.CreateVolume(cmd.Context(), resource.NewVolume{Name: args[0], Size: uint64(bytes), Copies: copies,
				ExtentSize: uint64(extent), Pools: pools})
			if err != nil {
				return advise(err, hints{fault.NotFound: "see: samovar pool list", fault.NoSpace: "see: samovar pool list",
					fault.Exists: "choose another name; see: samovar volume info " + args[0], fault.Invalid: "see: samovar volume create --help"})
			}
			return s.print(v, func(w io.Writer) {
				fmt.Fprintf(w, "volume %s: created, %s, copies on %s\n", printable(v.Name), formatSize(v.Size), places(v))
				fmt.Fprintf(w, "next: samovar volume attach %s\n", printable(v.Name))
			})
		}),
	}
	flags := cmd.Flags()
	flags.Var(&bytes, "size", "size of the volume, like 10GiB")
	flags.IntVar(&copies, "replicas", 2, "how many copies; with --pool: one in each")
	flags.Var(&extent, "extent-size", "unit of placement, a power of two (the node's choice if not given)")
	flags.StringSliceVar(&pools, "pool", nil, "pools for the copies, instead of placement: p1,p2")
	return cmd
}

// places names where the copies are.
func places(v resource.Volume) string {
	parts := make([]string, len(v.Replicas))
	for i, r := range v.Replicas {
		parts[i] = printable(fmt.Sprintf("%s (node %s)", r.Pool, r.Node))
	}
	return strings.Join(parts, ", ")
}

// outcome is what a command without a result prints for programs.
type outcome struct {
	Volume string `json:"volume"`
	Result string `json:"result"`
}

// done prints the outcome of a command on a volume.
func (s *session) done(volume, result string) error {
	return s.print(outcome{volume, result}, func(w io.Writer) { fmt.Fprintf(w, "volume %s: %s\n", volume, result) })
}

func volumeDelete(s *session) *cobra.Command {
	var sure bool
	cmd := &cobra.Command{
		Use: "delete VOLUME", Aliases: []string{"rm"}, Short: "Delete a volume and its data", Args: takes("VOLUME"), ValidArgsFunction: s.completeVolumes(),
		Long:    "Delete a volume, its copies and its data. A terminal is asked for the name again; elsewhere --yes is needed.",
		Example: "  samovar volume delete tea\n  samovar volume delete tea --yes",
		RunE: s.run(func(cmd *cobra.Command, c *client.Client, args []string) error {
			name := args[0]
			if !sure {
				if err := s.confirm(cmd, c, name); err != nil {
					return advise(err, volumeHints())
				}
			}
			if err := c.DeleteVolume(cmd.Context(), name); err != nil {
				return advise(err, hints{fault.NotFound: "see: samovar volume list", fault.Busy: "first: samovar volume detach " + name})
			}
			return s.done(name, "deleted")
		}),
	}
	cmd.Flags().BoolVarP(&sure, "yes", "y", false, "do not ask")
	return cmd
}

// confirm asks the terminal whether a volume may be deleted.
func (s *session) confirm(cmd *cobra.Command, c *client.Client, name string) error {
	if !s.streams.InTerminal {
		return usage(cmd, fmt.Errorf("deleting needs --yes where nobody can be asked"))
	}
	v, err := c.Volume(cmd.Context(), name)
	if err != nil {
		return err
	}
	fmt.Fprintf(s.streams.Err, "Volume %s (%s, %d copies) and all its data will be gone.\nType its name to delete it: ",
		printable(v.Name), formatSize(v.Size), len(v.Replicas))
	answer := make(chan string, 1)
	go func() { // a terminal's read cannot be interrupted; the goroutine ends with the process
		line, _ := bufio.NewReader(s.streams.In).ReadString('\n')
		answer <- strings.TrimSpace(line)
	}()
	select {
	case <-cmd.Context().Done():
		return fault.New(fault.Aborted, "volume "+name, "interrupted; nothing was deleted")
	case typed := <-answer:
		if typed != name {
			return fault.New(fault.Permission, "volume "+name, "not confirmed; nothing was deleted")
		}
	}
	return nil
}
