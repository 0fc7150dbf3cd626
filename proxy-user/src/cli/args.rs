//! The command line as types. Doc comments are the help texts.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use super::explain::Question;

/// A Kafka gateway: clients dial it as if it were their brokers.
#[derive(Debug, Parser)]
#[command(
    name = "turnout",
    version,
    max_term_width = 100,
    disable_help_subcommand = true,
    after_help = "Examples:\n  turnout check /etc/turnout/turnout.yaml\n  turnout run --config /etc/turnout/turnout.yaml\n  \
                  turnout status\n\nExit codes: 0 done, 1 refused or failed, 2 wrong usage."
)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Run the daemon in the foreground; it logs to stderr
    ///
    /// SIGHUP loads the config again, SIGTERM or SIGINT drains and ends, a second one ends at once. Exits with 0 after
    /// a drain, and with 1 and the reason when it can't start.
    #[command(after_help = "Example:\n  turnout run --config /etc/turnout/turnout.yaml")]
    Run(RunArgs),

    /// Read a config file and draw what it describes, or say what is wrong with it
    #[command(after_help = "Examples:\n  turnout check turnout.yaml\n  turnout check turnout.yaml --format json")]
    Check {
        /// The config file
        file: PathBuf,
        /// How to print it
        #[arg(long, value_enum, default_value_t = TreeFormat::Tree)]
        format: TreeFormat,
    },

    /// Say which way a request takes through a config, and why; nothing is contacted
    #[command(after_help = "Examples:\n  turnout explain --config turnout.yaml --client 10.0.1.7 Fetch\n  \
                            turnout explain --config turnout.yaml --client 10.0.1.7 --topic orders Produce --version 9")]
    Explain(ExplainArgs),

    /// Show what the running daemon does
    #[command(after_help = "Examples:\n  turnout status\n  turnout status --connections\n  \
                            turnout status --format json | jq .virtual_clusters")]
    Status {
        /// List the client connections
        #[arg(long)]
        connections: bool,
        /// How to print it
        #[arg(long, value_enum, default_value_t = TableFormat::Table)]
        format: TableFormat,
        #[command(flatten)]
        socket: Socket,
    },

    /// What passes now, in the kernel and through the daemon, shown anew each second
    #[command(after_help = "Examples:\n  turnout top\n  turnout top --once --format json")]
    Top {
        /// Print one second of it
        #[arg(long)]
        once: bool,
        /// How to print it; JSON is printed once
        #[arg(long, value_enum, default_value_t = TableFormat::Table)]
        format: TableFormat,
        #[command(flatten)]
        socket: Socket,
    },

    /// Make the running daemon load its config file again, whole or not at all
    #[command(after_help = "Examples:\n  turnout reload\n  turnout reload --format json")]
    Reload {
        /// How to print what changed
        #[arg(long, value_enum, default_value_t = TextFormat::Text)]
        format: TextFormat,
        #[command(flatten)]
        socket: Socket,
    },

    /// Make the running daemon finish what is in flight and end
    #[command(after_help = "Examples:\n  turnout drain\n  turnout drain --wait")]
    Drain {
        /// Return only when the daemon has ended
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        socket: Socket,
    },

    /// Print the version
    #[command(after_help = "Example:\n  turnout version")]
    Version,

    /// Say what this host can and can't do for the gateway, one sentence each
    #[command(after_help = "Examples:\n  turnout doctor\n  turnout doctor --format json")]
    Doctor {
        /// How to print it
        #[arg(long, value_enum, default_value_t = TextFormat::Text)]
        format: TextFormat,
    },

    /// Restart the running daemon without a gap: the binary as it is at its path now takes over, the old one drains
    ///
    /// No connection is refused or lost in between. Returns once the new process serves; if it doesn't come to that, the
    /// old one goes on as before, and the reason is printed.
    #[command(after_help = "Example:\n  turnout upgrade")]
    Upgrade {
        /// How to print it
        #[arg(long, value_enum, default_value_t = TextFormat::Text)]
        format: TextFormat,
        #[command(flatten)]
        socket: Socket,
    },

    /// Show who may connect, and who was refused
    #[command(
        subcommand,
        after_help = "Examples:\n  turnout admission list\n  turnout admission top\n  \
                            turnout admission top --once --format json"
    )]
    Admission(Admission),

    /// Show what consumers read in which rack, what that saved, and which replicas are held down
    #[command(
        args_conflicts_with_subcommands = true,
        after_help = "Examples:\n  turnout racks\n  turnout racks --topics\n  turnout racks why --client 10.0.1.7 --topic orders"
    )]
    Racks {
        #[command(subcommand)]
        why: Option<Racks>,
        /// By topic as well
        #[arg(long)]
        topics: bool,
        /// How to print it
        #[arg(long, value_enum, default_value_t = TableFormat::Table)]
        format: TableFormat,
        #[command(flatten)]
        socket: Socket,
    },

    /// Load the kernel programs without the daemon; they stay until `detach`
    ///
    /// Ports and rules are the daemon's to set: until it does, everything passes as before. Needs root, or CAP_BPF,
    /// CAP_NET_ADMIN and CAP_PERFMON.
    #[command(after_help = "Examples:\n  turnout attach --config /etc/turnout/turnout.yaml\n  \
                            turnout attach --interface eth0 --interface eth1")]
    Attach(AttachArgs),

    /// Take the kernel programs off this host, and what they are pinned by
    #[command(after_help = "Example:\n  turnout detach")]
    Detach {
        /// How to print it
        #[arg(long, value_enum, default_value_t = TextFormat::Text)]
        format: TextFormat,
        /// Also where a daemon runs on them
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        pins: Pins,
    },

    /// Do what a daemon without root can't do for itself: mount a bpffs and make the pin folder of that user
    ///
    /// The one step of a start that needs root; a systemd unit has it as ExecStartPre. Nothing is loaded or attached,
    /// and where the config has `fast_path: {mode: off}` nothing is done.
    #[command(after_help = "Example:\n  turnout prepare --config /etc/turnout/turnout.yaml --user turnout")]
    Prepare {
        /// The config file
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// Name or number of the user that the daemon will run as
        #[arg(long, value_name = "USER")]
        user: String,
    },

    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  turnout completions bash > /etc/bash_completion.d/turnout")]
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: Shell,
    },

    #[command(flatten)]
    Later(Later),
}

#[derive(Debug, Subcommand)]
pub(super) enum Admission {
    /// The rules in force, and what was let in and refused by them
    #[command(after_help = "Example:\n  turnout admission list")]
    List {
        /// How to print it
        #[arg(long, value_enum, default_value_t = TableFormat::Table)]
        format: TableFormat,
        #[command(flatten)]
        socket: Socket,
    },

    /// Who was refused lately, why and how often, shown anew each second
    #[command(after_help = "Examples:\n  turnout admission top\n  turnout admission top --once --format json")]
    Top {
        /// Print it once
        #[arg(long)]
        once: bool,
        /// How to print it; JSON is printed once
        #[arg(long, value_enum, default_value_t = TableFormat::Table)]
        format: TableFormat,
        #[command(flatten)]
        socket: Socket,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum Racks {
    /// Where a client reads each partition now, and why there
    #[command(after_help = "Example:\n  turnout racks why --client 10.0.1.7 --client-id app --topic orders")]
    Why {
        /// Address the client dials from, with or without a port
        #[arg(long, value_name = "ADDR", value_parser = client_address)]
        client: IpAddr,
        /// The client's client.id
        #[arg(long, value_name = "ID")]
        client_id: Option<String>,
        /// The client's own client.rack
        #[arg(long, value_name = "RACK")]
        client_rack: Option<String>,
        /// This topic only; default: all that are known
        #[arg(long)]
        topic: Option<String>,
        /// This virtual cluster only; default: all that route
        #[arg(long, value_name = "NAME")]
        virtual_cluster: Option<String>,
        /// How to print it
        #[arg(long, value_enum, default_value_t = TableFormat::Table)]
        format: TableFormat,
        #[command(flatten)]
        socket: Socket,
    },
}

#[derive(Debug, Args)]
pub(super) struct AttachArgs {
    /// Take interfaces and pins from `fast_path` of this config file
    #[arg(long, conflicts_with_all = ["interface", "pin"])]
    pub(super) config: Option<PathBuf>,
    /// A network interface to run admission on; default: every one that can carry clients
    #[arg(long, value_name = "NAME")]
    pub(super) interface: Vec<String>,
    /// How to print it
    #[arg(long, value_enum, default_value_t = TextFormat::Text)]
    pub(super) format: TextFormat,
    #[command(flatten)]
    pub(super) pins: Pins,
}

/// Commands that a later part brings. Named here so that they are refused as such, and not as typing errors.
#[derive(Debug, Subcommand)]
pub(super) enum Later {
    #[command(hide = true, disable_help_flag = true)]
    Branch(Rest),
    #[command(hide = true, disable_help_flag = true)]
    Verify(Rest),
}

impl Later {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Branch(_) => "branch",
            Self::Verify(_) => "verify",
        }
    }
}

/// Whatever else was typed.
#[derive(Debug, Args)]
pub(super) struct Rest {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    _words: Vec<std::ffi::OsString>,
}

#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// The config file
    #[arg(long, env = "TURNOUT_CONFIG")]
    pub(super) config: PathBuf,
}

#[derive(Debug, Args)]
#[command(disable_version_flag = true)]
pub(super) struct ExplainArgs {
    /// The config file
    #[arg(long, env = "TURNOUT_CONFIG")]
    pub(super) config: PathBuf,
    /// Address the client dials from, with or without a port
    #[arg(long, value_name = "ADDR", value_parser = client_address)]
    client: IpAddr,
    /// The client's client.id
    #[arg(long, value_name = "ID")]
    client_id: Option<String>,
    /// Topic that the request is about
    #[arg(long)]
    topic: Option<String>,
    /// Explain this virtual cluster only; default: all of them
    #[arg(long, value_name = "NAME")]
    virtual_cluster: Option<String>,
    /// Name or number of a Kafka API: Produce, fetch, 3, …
    api: String,
    /// Version of the request; default: the highest that clients are offered
    #[arg(long)]
    version: Option<i16>,
    /// How to print it
    #[arg(long, value_enum, default_value_t = TextFormat::Text)]
    pub(super) format: TextFormat,
}

impl ExplainArgs {
    pub(super) fn question(&self) -> Question {
        let Self { config: _, client, client_id, topic, virtual_cluster, api, version, format: _ } = self;
        Question {
            client: *client,
            client_id: client_id.clone(),
            topic: topic.clone(),
            api: api.clone(),
            version: *version,
            virtual_cluster: virtual_cluster.clone(),
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct Pins {
    /// Where they are pinned, on a bpffs
    #[arg(long, default_value = crate::kernel::PIN_DIRECTORY, value_name = "PATH")]
    pub(super) pin: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct Socket {
    /// The daemon's control socket: `admin.socket` of its config
    #[arg(long, env = "TURNOUT_SOCKET", default_value = "/run/turnout/turnout.sock", value_name = "PATH")]
    pub(super) socket: PathBuf,
}

macro_rules! print_as {
    ($name:ident, $human:ident, $doc:literal) => {
        /// How to print.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
        pub(super) enum $name {
            #[doc = $doc]
            $human,
            /// For programs
            Json,
        }

        impl $name {
            /// For programs, not for people.
            pub(super) fn is_json(self) -> bool {
                self == Self::Json
            }
        }
    };
}

print_as!(TableFormat, Table, "For people");
print_as!(TreeFormat, Tree, "For people");
print_as!(TextFormat, Text, "For people");

fn client_address(text: &str) -> Result<IpAddr, String> {
    text.parse::<IpAddr>()
        .or_else(|_| text.parse::<SocketAddr>().map(|a| a.ip()))
        .map(|address| address.to_canonical())
        .map_err(|_| "not an IP address; e.g. 10.0.1.7, 10.0.1.7:54321 or 2001:db8::7".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_an_example_in_its_help() {
        for command in Cli::command().get_subcommands_mut().filter(|c| !c.is_hide_set()) {
            let help = command.render_long_help().to_string();
            assert!(help.contains(&format!("  turnout {}", command.get_name())), "{}", command.get_name());
        }
    }

    #[test]
    fn a_client_address_may_have_a_port() {
        let v4: IpAddr = "10.0.1.7".parse().expect("an address");
        assert_eq!(client_address("10.0.1.7"), Ok(v4));
        assert_eq!(client_address("10.0.1.7:54321"), Ok(v4));
        assert_eq!(client_address("::ffff:10.0.1.7"), Ok(v4));
        assert!(client_address("[2001:db8::7]:1").is_ok());
        assert!(client_address("kafka.example.com").is_err());
    }
}
