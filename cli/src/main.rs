//! The `urxe` command.

fn main() -> std::process::ExitCode {
    urxe_cli::main()
}
